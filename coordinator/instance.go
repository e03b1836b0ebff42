package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	maxJSONDepth   = 64
	maxDocument    = 4 << 20          // of a merged document
	maxSources     = 16 * maxDocument // of all that one is merged of
	maxDocNumbers  = 1 << 18          // remembered: more than all agents together have
	documentIndent = "  "
)

// object is a JSON object. Its values are objects, or json.RawMessage as it was
// written: numbers and strings keep their form.
type object map[string]any

// parseObject reads content that must be one JSON object. A key that is there
// twice is refused, also inside of arrays: readers do not agree which one counts.
func parseObject(content []byte) (object, error) {
	if !utf8.Valid(content) {
		return nil, errors.New("it is not UTF-8")
	}
	if err := checkKeys(json.NewDecoder(bytes.NewReader(content))); err != nil {
		return nil, err
	}
	if !isObject(content) {
		return nil, errors.New("it is no object")
	}
	return objectOf(content)
}

// checkKeys walks one JSON value and what follows it.
func checkKeys(dec *json.Decoder) error {
	dec.UseNumber()
	if err := checkValue(dec, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the object")
	}
	return nil
}

func checkValue(dec *json.Decoder, depth int) error {
	t, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if depth == maxJSONDepth {
		return fmt.Errorf("it is more than %d levels deep", maxJSONDepth)
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string)
			if seen[name] {
				return fmt.Errorf("the key %.80q is there twice", name)
			}
			seen[name] = true
		}
		if err := checkValue(dec, depth+1); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

func objectOf(content []byte) (object, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(content, &raw); err != nil {
		return nil, err
	}
	o := make(object, len(raw))
	for k, v := range raw {
		if !bytes.HasPrefix(v, []byte("{")) {
			o[k] = v
			continue
		}
		inner, err := objectOf(v)
		if err != nil {
			return nil, err
		}
		o[k] = inner
	}
	return o, nil
}

// merge puts what is in the smaller scope over o. Objects are merged key by
// key; everything else, also an array and null, takes the place of what was there.
func (o object) merge(smaller object) {
	for k, v := range smaller {
		into, ok := o[k].(object)
		from, both := v.(object)
		if ok && both {
			into.merge(from)
		} else {
			o[k] = v
		}
	}
}

// text is the object as it goes to an agent: keys sorted, indented.
func (o object) text() ([]byte, error) {
	var flat, out bytes.Buffer
	enc := json.NewEncoder(&flat)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(o); err != nil {
		return nil, err
	}
	err := json.Indent(&out, flat.Bytes(), "", documentIndent)
	return out.Bytes(), err
}

// document is the merged INSTANCE document of all agents that have the same
// sources.
type document struct {
	file    *musterv1.FileSpec
	content []byte
}

// unmergeable is why a document cannot be made of its sources. They never change,
// so it stays so.
type unmergeable struct{ error }

// document merges what an agent shall hold. What cannot be merged is tried once,
// not for each agent.
func (k *configs) document(ctx context.Context, want *wantSet) (*document, error) {
	if err := k.desired.numbers.spoiled(want.doc); err != nil {
		return nil, err
	}
	doc, err := k.merged(ctx, want.sourceRefs())
	if errors.As(err, new(unmergeable)) {
		k.desired.numbers.spoil(want.doc, err)
		k.c.warn("an INSTANCE document cannot be merged; agents keep the one they have", "version", want.doc, "sources", cutText(refsKey(want.sourceRefs()), 300), "err", err)
	}
	return doc, err
}

// merged reads the sources, the widest scope first, and merges them. The file
// spec is that of the smallest scope that has one.
func (k *configs) merged(ctx context.Context, sources []configRef) (*document, error) {
	all, size := object{}, 0
	doc := &document{file: &musterv1.FileSpec{}}
	for _, ref := range sources {
		v, err := k.version(ctx, ref)
		if err != nil {
			return nil, err
		}
		if size += int(v.Size); size > maxSources {
			return nil, unmergeable{fmt.Errorf("the document would be merged of more than %d bytes", maxSources)}
		}
		content, err := k.content(ctx, v)
		if err != nil {
			return nil, err
		}
		o, err := parseObject(content)
		if err != nil {
			return nil, unmergeable{fmt.Errorf("config %q, version %d: %w", ref.name, ref.version, err)}
		}
		all.merge(o)
		if proto.Size(v.File) > 0 {
			doc.file = v.File
		}
	}
	var err error
	doc.content, err = all.text()
	if err == nil && len(doc.content) > maxDocument {
		return nil, unmergeable{fmt.Errorf("the merged document has %d bytes, at most %d", len(doc.content), maxDocument)}
	}
	return doc, err
}

// docNumbers gives each set of sources a number that stands for the version of
// the merged document on the wire. It follows from the sources alone, so that it
// is the same after a restart, unless two sets met at one number: then the later
// one gets another, so that no document has the number of one it replaces.
type docNumbers struct {
	mu      sync.Mutex
	numbers map[string]int32
	sources map[int32][]configRef
	broken  map[int32]error // unmergeable
}

func newDocNumbers() *docNumbers {
	return &docNumbers{numbers: map[string]int32{}, sources: map[int32][]configRef{}, broken: map[int32]error{}}
}

// of numbers a document; 0 for none.
func (d *docNumbers) of(sources []configRef) int32 {
	if len(sources) == 0 {
		return 0
	}
	key := refsKey(sources)
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, ok := d.numbers[key]; ok {
		return n
	}
	if len(d.sources) >= maxDocNumbers {
		d.numbers, d.sources, d.broken = map[string]int32{}, map[int32][]configRef{}, map[int32]error{}
	}
	for salt := 0; ; salt++ {
		n := numberOf(key, salt)
		if _, taken := d.sources[n]; taken || n == 0 || n == deletedVersion {
			continue
		}
		d.numbers[key], d.sources[n] = n, sources
		return n
	}
}

// adopt notes what a document was merged of that an agent ran when the
// coordinator was stopped.
func (d *docNumbers) adopt(n int32, sources []*musterv1.DocumentSource) {
	refs := make([]configRef, len(sources))
	for i, s := range sources {
		refs[i] = configRef{s.Config, s.Version}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.sources[n]; taken || len(d.sources) >= maxDocNumbers {
		return
	}
	d.sources[n] = refs
	if key := refsKey(refs); d.numbers[key] == 0 {
		d.numbers[key] = n
	}
}

// spoil notes why a document cannot be merged.
func (d *docNumbers) spoil(n int32, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken[n] = why
}

// spoiled returns why a document cannot be merged; nil: as far as is known it can.
func (d *docNumbers) spoiled(n int32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken[n]
}

// known returns what the document of that number was merged of, or nil.
func (d *docNumbers) known(n int32) []configRef {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sources[n]
}

var numberOf = func(key string, salt int) int32 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%s", salt, key))
	return int32(binary.BigEndian.Uint32(sum[:4]))
}

// refsKey names a list of versions.
func refsKey(refs []configRef) string {
	var b []byte
	for _, r := range refs {
		b = fmt.Appendf(b, "%s@%d,", r.name, r.version)
	}
	return string(b)
}
