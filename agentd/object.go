package agentd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// members are those of a JSON object that was read strictly.
type members map[string]json.RawMessage

// object reads a command's input: nothing at all, or one object in UTF-8
// without a key twice and without any that is not known. What Go would quietly
// replace, such as half a surrogate pair, is refused: arguments arrive as they
// were given, or not at all.
func object(input []byte, known ...string) (members, error) {
	if len(bytes.TrimSpace(input)) == 0 {
		return members{}, nil
	}
	switch {
	case !utf8.Valid(input):
		return nil, errors.New("input: not UTF-8")
	case !json.Valid(input):
		return nil, errors.New("input: not JSON")
	case halfPair(input):
		return nil, errors.New("input: half of a surrogate pair is no text")
	}
	ms, err := parse(input, "input")
	if err != nil {
		return nil, err
	}
	for key := range ms {
		if !slices.Contains(known, key) {
			if len(known) == 0 {
				return nil, fmt.Errorf("input.%.100s: unknown key; this type takes no input", key)
			}
			return nil, fmt.Errorf("input.%.100s: unknown key; known are %s", key, strings.Join(known, ", "))
		}
	}
	return ms, nil
}

// parse takes valid JSON apart that is to be an object.
func parse(b []byte, path string) (members, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%s: want an object", path)
	}
	ms := members{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		key, _ := t.(string)
		if _, twice := ms[key]; twice {
			return nil, fmt.Errorf("%s.%.100s: given twice", path, key)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s.%.100s: %w", path, key, err)
		}
		ms[key] = v
	}
	return ms, nil
}

func (ms members) string(key string) (s string, given bool, err error) {
	v, given := ms[key]
	if !given {
		return "", false, nil
	}
	s, err = text(v, "input."+key)
	return s, true, err
}

func (ms members) strings(key string) ([]string, error) {
	v, given := ms[key]
	if !given {
		return nil, nil
	}
	var raw []json.RawMessage
	if v[0] != '[' || json.Unmarshal(v, &raw) != nil {
		return nil, fmt.Errorf("input.%s: want an array of strings", key)
	}
	list := make([]string, len(raw))
	for i, r := range raw {
		s, err := text(r, fmt.Sprintf("input.%s[%d]", key, i))
		if err != nil {
			return nil, err
		}
		list[i] = s
	}
	return list, nil
}

func (ms members) table(key string) (map[string]string, error) {
	v, given := ms[key]
	if !given {
		return nil, nil
	}
	raw, err := parse(v, "input."+key)
	if err != nil {
		return nil, err
	}
	table := make(map[string]string, len(raw))
	for name, r := range raw {
		if table[name], err = text(r, fmt.Sprintf("input.%s.%.100s", key, name)); err != nil {
			return nil, err
		}
	}
	return table, nil
}

func text(v json.RawMessage, path string) (s string, err error) {
	if v[0] != '"' || json.Unmarshal(v, &s) != nil {
		return "", fmt.Errorf("%s: want a string", path)
	}
	return s, nil
}

// halfPair finds a \u escape of a surrogate without its other half in valid JSON.
func halfPair(b []byte) bool {
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if b[i+1] != 'u' {
			i++ // the escaped character
			continue
		}
		switch c := escaped(b, i); {
		case c >= 0xdc00 && c <= 0xdfff:
			return true
		case c >= 0xd800 && c <= 0xdbff:
			i += 6
			if low := escaped(b, i); low < 0xdc00 || low > 0xdfff {
				return true
			}
		}
		i += 5
	}
	return false
}

// escaped is the code unit of a \uXXXX at i, 0 if there is none.
func escaped(b []byte, i int) uint64 {
	if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
		return 0
	}
	c, _ := strconv.ParseUint(string(b[i+2:i+6]), 16, 16)
	return c
}
