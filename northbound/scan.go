package northbound

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of objects and arrays in a body.
const maxDepth = 100

// fault is one thing that is wrong with a body, and where.
type fault struct {
	Code    string
	Path    string // such as "target.agents[2]"; empty for the body as a whole
	Message string
}

func (f *fault) Error() string {
	if f.Path == "" {
		return f.Message
	}
	return f.Path + ": " + f.Message
}

// scanner walks over JSON text and knows where it is. encoding/json would not
// do: it replaces bad UTF-8, keeps the last of two equal keys, and does not
// say which field a mistake is in.
type scanner struct {
	data  []byte
	pos   int
	depth int
	path  []string
}

func (s *scanner) fault(code, format string, args ...any) error {
	return &fault{Code: code, Path: strings.TrimPrefix(strings.Join(s.path, ""), "."), Message: fmt.Sprintf(format, args...)}
}

// syntax is the fault of text that is not JSON.
func (s *scanner) syntax(want string) error {
	before := s.data[:min(s.pos, len(s.data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	got := "the body ends"
	if s.pos < len(s.data) {
		got = fmt.Sprintf("found %q", s.data[s.pos])
	}
	return s.fault("MALFORMED_JSON", "not JSON: %s at line %d, column %d; want %s", got, line, column, want)
}

// at runs read with the path one step deeper.
func (s *scanner) at(step string, read func() error) error {
	s.path = append(s.path, step)
	if err := read(); err != nil {
		return err
	}
	s.path = s.path[:len(s.path)-1]
	return nil
}

// keyStep is the step of a path for the key of an object.
func keyStep(key string) string {
	plain := key != "" && len(key) <= 64
	for _, r := range key {
		plain = plain && (r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	}
	if plain {
		return "." + key
	}
	if len(key) > 64 {
		key = strings.ToValidUTF8(key[:64], "") + "…"
	}
	return "[" + strconv.Quote(key) + "]"
}

// next skips white space and returns the byte that the next token starts with,
// 0 at the end.
func (s *scanner) next() byte {
	for s.pos < len(s.data) {
		switch b := s.data[s.pos]; b {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return b
		}
	}
	return 0
}

// end is nil when nothing but white space is left.
func (s *scanner) end() error {
	if s.next(); s.pos < len(s.data) {
		return s.fault("TRAILING_DATA", "something follows the JSON value: %.20q", s.data[s.pos:])
	}
	return nil
}

func (s *scanner) enter() error {
	if s.depth++; s.depth > maxDepth {
		return s.fault("TOO_DEEP", "objects and arrays are nested more than %d deep", maxDepth)
	}
	s.pos++ // the bracket
	return nil
}

// object calls member for each key, with the scanner before its value. It
// refuses a key that it has seen.
func (s *scanner) object(member func(key string) error) error {
	if s.next() != '{' {
		return s.syntax("an object")
	}
	if err := s.enter(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for s.next() != '}' {
		if len(seen) > 0 {
			if s.next() != ',' {
				return s.syntax("a comma or the end of the object")
			}
			s.pos++
		}
		if s.next() != '"' {
			return s.syntax("a key in double quotes")
		}
		key, err := s.text()
		if err != nil {
			return err
		}
		if s.next() != ':' {
			return s.syntax("a colon")
		}
		s.pos++
		err = s.at(keyStep(key), func() error {
			if seen[key] {
				return s.fault("DUPLICATE_FIELD", "is given twice")
			}
			seen[key] = true
			return member(key)
		})
		if err != nil {
			return err
		}
	}
	s.pos++
	s.depth--
	return nil
}

// hasKey reports whether an object that was read without a fault has the key.
// A message cannot tell false or "" from nothing.
func hasKey(object []byte, key string) (found bool) {
	s := scanner{data: object}
	_ = s.object(func(given string) error {
		found = found || given == key
		return s.skip()
	})
	return found
}

// array calls element with the scanner before each element.
func (s *scanner) array(element func() error) error {
	if s.next() != '[' {
		return s.syntax("an array")
	}
	if err := s.enter(); err != nil {
		return err
	}
	for i := 0; s.next() != ']'; i++ {
		if i > 0 {
			if s.next() != ',' {
				return s.syntax("a comma or the end of the array")
			}
			s.pos++
		}
		if err := s.at("["+strconv.Itoa(i)+"]", element); err != nil {
			return err
		}
	}
	s.pos++
	s.depth--
	return nil
}

// text reads a string. One that is not text (bad UTF-8, half a surrogate pair)
// is refused: it could not be shown again as it came.
func (s *scanner) text() (string, error) {
	if s.next() != '"' {
		return "", s.syntax("a string")
	}
	s.pos++
	var out []byte
	for s.pos < len(s.data) {
		switch b := s.data[s.pos]; {
		case b == '"':
			s.pos++
			return string(out), nil
		case b == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		case b < ' ':
			return "", s.syntax(`control characters written as \u00XX`)
		case b < utf8.RuneSelf:
			out = append(out, b)
			s.pos++
		default:
			r, n := utf8.DecodeRune(s.data[s.pos:])
			if r == utf8.RuneError && n == 1 {
				return "", s.fault("INVALID_UTF8", "the text is not UTF-8 (byte 0x%02x)", b)
			}
			out = append(out, s.data[s.pos:s.pos+n]...)
			s.pos += n
		}
	}
	return "", s.syntax("the end of the string")
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (s *scanner) escape() (rune, error) {
	s.pos++ // the backslash
	if s.pos == len(s.data) {
		return 0, s.syntax("the rest of the escape")
	}
	if r, ok := escapes[s.data[s.pos]]; ok {
		s.pos++
		return r, nil
	}
	r, ok := s.hexEscape()
	if !ok {
		return 0, s.syntax("an escape that JSON knows")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if s.pos < len(s.data) && s.data[s.pos] == '\\' {
		s.pos++
		if low, ok := s.hexEscape(); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, s.fault("INVALID_UTF8", `\u%04x is half of a surrogate pair, which is not text`, r)
}

// hexEscape reads uXXXX, and nothing when it is something else.
func (s *scanner) hexEscape() (rune, bool) {
	if len(s.data)-s.pos < 5 || s.data[s.pos] != 'u' {
		return 0, false
	}
	var r rune
	for _, b := range s.data[s.pos+1 : s.pos+5] {
		digit := strings.IndexByte("0123456789abcdef", b|0x20)
		if digit < 0 || b < '0' {
			return 0, false
		}
		r = r<<4 | rune(digit)
	}
	s.pos += 5
	return r, true
}

// number reads a number as it is written.
func (s *scanner) number() (string, error) {
	start := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return "", s.syntax("a digit")
	}
	if s.peek() == '.' {
		if s.pos++; !s.digits() {
			return "", s.syntax("a digit")
		}
	}
	if b := s.peek(); b == 'e' || b == 'E' {
		s.pos++
		if b := s.peek(); b == '+' || b == '-' {
			s.pos++
		}
		if !s.digits() {
			return "", s.syntax("a digit")
		}
	}
	return string(s.data[start:s.pos]), nil
}

func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) digits() bool {
	start := s.pos
	for b := s.peek(); '0' <= b && b <= '9'; b = s.peek() {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.syntax("a JSON value")
	}
	s.pos += len(word)
	return nil
}

// raw reads any value and returns its text as it stands.
func (s *scanner) raw() ([]byte, error) {
	s.next()
	start := s.pos
	err := s.skip()
	return s.data[start:s.pos], err
}

func (s *scanner) skip() error {
	switch b := s.next(); {
	case b == '{':
		return s.object(func(string) error { return s.skip() })
	case b == '[':
		return s.array(s.skip)
	case b == '"':
		_, err := s.text()
		return err
	case b == '-' || '0' <= b && b <= '9':
		_, err := s.number()
		return err
	case b == 't':
		return s.literal("true")
	case b == 'f':
		return s.literal("false")
	default:
		return s.literal("null")
	}
}
