package load

import (
	"bufio"
	"bytes"
	"testing"
	"testing/iotest"
)

func TestFramesAreRead(t *testing.T) {
	m := Message{[]byte("type"), nil, make([]byte, 53), make([]byte, 54), bytes.Repeat([]byte("x"), 255), bytes.Repeat([]byte("y"), 70_000), []byte("end")}
	for name, in := range map[string]*bufio.Reader{
		"small buffer":    bufio.NewReaderSize(bytes.NewReader(m.Append(nil)), 64),
		"large buffer":    bufio.NewReaderSize(bytes.NewReader(m.Append(nil)), 1<<20),
		"bytes come late": bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(m.Append(nil))), 64),
	} {
		for i, want := range m {
			flags, body, err := ReadFrame(in)
			if err != nil || flags&FlagMore != m.flags(i) || !bytes.Equal(body, want) {
				t.Errorf("%s: frame %d is %.40q of %d bytes with flags %#02x, %v", name, i, body, len(body), flags, err)
			}
		}
	}
}

func TestBrokenFramesAreErrors(t *testing.T) {
	for name, b := range map[string]string{
		"nothing":     "",
		"half a head": "\x00",
		"half a size": "\x02\x00\x00",
		"half a body": "\x00\x02a",
		"half a long": "\x02\x00\x00\x00\x00\x00\x00\x01\x00abc",
		"too large":   "\x02\xff\xff\xff\xff\xff\xff\xff\xffabc",
	} {
		if _, body, err := ReadFrame(bufio.NewReaderSize(bytes.NewReader([]byte(b)), 16)); err == nil {
			t.Errorf("%s: no error, the body is %q", name, body)
		}
	}
}
