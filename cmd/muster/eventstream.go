package main

import (
	"bufio"
	"bytes"
	"io"
)

// maxEvent bounds one event; the server's are far smaller.
const maxEvent = 8 << 20

// readEvents calls fn for each event of a stream (text/event-stream) until it
// ends or fn fails. Comments, which keep the stream alive, are passed over.
func readEvents(r io.Reader, fn func(id string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	var id string
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if data != nil {
				if err := fn(id, data); err != nil {
					return err
				}
			}
			data = nil
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			id = string(value)
		case "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, value...)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errStreamEnded
}
