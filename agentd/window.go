package agentd

import "container/heap"

// window remembers settled ids, so that a late copy of a command is not taken
// for a new one. It holds so many; when one more comes, the smallest leaves and
// the floor rises to it: ids up to the floor are never run any more. Ids are
// ULIDs, so the smallest is the oldest.
type window struct {
	limit int
	floor string
	ids   map[string]struct{}
	least idHeap
}

func newWindow(limit int) *window {
	return &window{limit: limit, ids: map[string]struct{}{}}
}

func (w *window) add(id string) {
	if w.has(id) || id <= w.floor {
		return
	}
	w.ids[id] = struct{}{}
	heap.Push(&w.least, id)
	for len(w.least) > w.limit {
		w.floor = heap.Pop(&w.least).(string)
		delete(w.ids, w.floor)
	}
}

func (w *window) has(id string) bool {
	_, ok := w.ids[id]
	return ok
}

// below reports whether id is too old to be told from one that was forgotten.
func (w *window) below(id string) bool { return w.floor != "" && id <= w.floor }

type idHeap []string

func (h idHeap) Len() int           { return len(h) }
func (h idHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h idHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *idHeap) Push(x any)        { *h = append(*h, x.(string)) }
func (h *idHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
