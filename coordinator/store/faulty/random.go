package faulty

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Odds say how often Random does what, from 0, never, to 1, always.
type Odds struct {
	Late   float64
	Delay  time.Duration // a late call waits up to this
	Refuse float64
	Forget float64
	Cut    float64 // of the watches, each after one to ten commits
}

// errRandom is the reason that Random gives for a refusal.
var errRandom = errors.New("refused on purpose")

// Random is a Plan of chance. One seed gives the same faults to calls that come
// in the same order.
func Random(seed uint64, o Odds) Plan {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	return func(c Call) (f Fault) {
		mu.Lock()
		defer mu.Unlock()
		// Every draw is made for every call, so that one fault does not shift the others.
		late, wait, refuse, forget, cut, after := r.Float64(), r.Float64(), r.Float64(), r.Float64(), r.Float64(), r.IntN(10)
		if late < o.Late {
			f.Delay = time.Duration(wait * float64(o.Delay))
		}
		if refuse < o.Refuse {
			f.Refuse = errRandom
		}
		f.Forget = c.Method == Commit && forget < o.Forget
		if c.Method == Watch && cut < o.Cut {
			f.Cut = 1 + after
		}
		return f
	}
}
