package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxLine is the longest line that a plugin may print. With it goes the largest
// result: what a coordinator keeps in one row.
const MaxLine = 192 << 10

// Lines reads what a plugin prints: JSON lines, each an object with one key.
//
//	{"progress": …}   how far it is; any JSON value
//	{"resource": …}   a resource that changed
//	{"result": …}     what came of it: one, and nothing after it
//
// Empty lines are skipped. Text is UTF-8 without a byte order mark, and nested
// at most 10,000 deep. Anything else makes the whole output invalid; what came
// before has been delivered.
type Lines struct {
	Progress, Resource func(json.RawMessage) // nil: dropped

	line   []byte
	number int
	result json.RawMessage
	err    error
}

// Write takes the next piece of output. It never fails, so that a pump goes on
// reading; Result tells what was wrong.
func (l *Lines) Write(p []byte) (int, error) {
	n := len(p)
	for l.err == nil && len(p) > 0 {
		piece, rest, ended := bytes.Cut(p, []byte{'\n'})
		if len(l.line)+len(piece) > MaxLine {
			l.err = fmt.Errorf("line %d is longer than %d bytes", l.number+1, MaxLine)
			break
		}
		l.line = append(l.line, piece...)
		if ended {
			l.endLine()
		}
		p = rest
	}
	if l.err != nil {
		l.line = nil
	}
	return n, nil
}

// Result returns the result, after the last Write. Without one, or when any
// line was wrong, it says what is invalid.
func (l *Lines) Result() (json.RawMessage, error) {
	if l.err == nil && len(l.line) > 0 {
		l.endLine()
	}
	if l.err != nil {
		return nil, l.err
	}
	if l.result == nil {
		return nil, errors.New(`no {"result": …} line`)
	}
	return l.result, nil
}

func (l *Lines) endLine() {
	l.number++
	line := bytes.Trim(l.line, " \t\r")
	l.line = l.line[:0]
	if len(line) == 0 {
		return
	}
	if l.result != nil {
		l.err = fmt.Errorf("line %d follows the result", l.number)
		return
	}
	key, value, err := member(line)
	if err != nil {
		l.err = fmt.Errorf("line %d: %w", l.number, err)
		return
	}
	switch key {
	case "progress":
		deliver(l.Progress, value)
	case "resource":
		deliver(l.Resource, value)
	case "result":
		l.result = value
	default:
		l.err = fmt.Errorf("line %d: unknown key %.60q", l.number, key)
	}
}

func deliver(to func(json.RawMessage), v json.RawMessage) {
	if to != nil {
		to(v)
	}
}

// member takes apart an object that has exactly one.
func member(line []byte) (key string, value json.RawMessage, err error) {
	if !utf8.Valid(line) {
		return "", nil, errors.New("not UTF-8")
	}
	if !json.Valid(line) {
		return "", nil, errors.New("not JSON")
	}
	if line[0] != '{' {
		return "", nil, errors.New("not an object")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	_, _ = d.Token()
	if !d.More() {
		return "", nil, errors.New("an object without a key")
	}
	t, err := d.Token()
	if err != nil {
		return "", nil, err
	}
	key = t.(string)
	if err := d.Decode(&value); err != nil {
		return "", nil, err
	}
	if d.More() {
		return "", nil, errors.New("an object with more than one key")
	}
	return key, value, nil
}
