package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Reporter prints the lines of a plugin. Its methods may be called from any
// goroutine; values are anything that encoding/json takes.
type Reporter struct {
	mu   sync.Mutex
	out  io.Writer
	done bool  // the result is out
	err  error // the first that a line could not be written with
}

// Progress says how far the work is.
func (r *Reporter) Progress(v any) error { return r.print("progress", v) }

// Resource says that a resource changed.
func (r *Reporter) Resource(v any) error { return r.print("resource", v) }

// Result says what came of the command, once; nothing may follow it.
func (r *Reporter) Result(v any) error { return r.print("result", v) }

func (r *Reporter) print(key string, v any) error {
	line, err := json.Marshal(map[string]any{key: v})
	if err == nil && len(line) > MaxLine {
		err = fmt.Errorf("%d bytes, at most %d", len(line), MaxLine)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.done {
		err = errors.New("it follows the result")
	}
	if err == nil {
		r.done = key == "result"
		_, err = r.out.Write(append(line, '\n'))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", key, err)
		if r.err == nil {
			r.err = err
		}
	}
	return err
}

// finish makes sure of a result. A line that could not be printed, which the
// plugin may have overlooked, is a failure.
func (r *Reporter) finish() error {
	r.mu.Lock()
	done, err := r.done, r.err
	r.mu.Unlock()
	if err != nil || done {
		return err
	}
	return r.Result(nil)
}
