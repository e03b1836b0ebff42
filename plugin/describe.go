package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Description is what a plugin prints when it is called as "PLUGIN describe":
// one JSON object. Keys that are not known are left alone.
type Description struct {
	Contract     int             `json:"contract"` // the version that it speaks; 0 is taken for 1
	Types        []string        `json:"types,omitempty"`
	Version      string          `json:"version,omitempty"`
	Description  string          `json:"description,omitempty"`
	Input        json.RawMessage `json:"input,omitempty"`  // schema of the input, for people and tools
	Result       json.RawMessage `json:"result,omitempty"` // schema of the result
	Capabilities []string        `json:"capabilities,omitempty"`
}

// Limits of a describe. A program that takes longer or says more has failed.
const (
	describeTime   = 5 * time.Second
	describeGrace  = time.Second
	describeOutput = 64 << 10
	describeSearch = 64 << 20
)

// Describes reports whether the program at path may know "describe": whether
// that word is in the file. One that does not have it is never called with it;
// a plain script might take any call for the order to do its work.
func Describes(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return contains(io.LimitReader(f, describeSearch), []byte("describe"))
}

// contains looks for a word in a stream.
func contains(r io.Reader, word []byte) (bool, error) {
	buf := make([]byte, 0, 64<<10)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if bytes.Contains(buf, word) {
			return true, nil
		}
		if keep := len(word) - 1; len(buf) > keep {
			buf = buf[:copy(buf, buf[len(buf)-keep:])]
		}
		if err == io.EOF {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
}

// Describe asks the program at path to describe itself. Of p, what the contract
// decides is overwritten, and so are the limits: 5 s and 64 KiB.
func Describe(ctx context.Context, path string, p Program) (Description, error) {
	p.Path, p.Args, p.Stdin = path, []string{path, "describe"}, nil
	p.Timeout, p.Grace, p.OutputCap = describeTime, describeGrace, describeOutput
	o := Run(ctx, p)
	switch {
	case o.StartErr != nil:
		return Description{}, o.StartErr
	case o.Cause == TimedOut:
		return Description{}, fmt.Errorf("describe: no answer within %v", describeTime)
	case o.Cause == Stopped:
		return Description{}, context.Cause(ctx)
	case !o.OK():
		return Description{}, fmt.Errorf("describe: %s", failure(o))
	case o.Stdout.Truncated():
		return Description{}, fmt.Errorf("describe: it printed %d bytes, at most %d", o.Stdout.Size, describeOutput)
	}
	d, err := parseDescription(o.Stdout.Kept)
	if err != nil {
		err = fmt.Errorf("describe: %w", err)
	}
	return d, err
}

// failure says in a line why a program did not succeed.
func failure(o Outcome) string {
	why := fmt.Sprintf("exit code %d", o.ExitCode)
	if o.Signal != "" {
		why = "ended by " + o.Signal
	}
	said := o.Stderr.Kept[:min(len(o.Stderr.Kept), 200)]
	if words := strings.Join(strings.Fields(strings.ToValidUTF8(string(said), "?")), " "); words != "" {
		why += ": " + words
	}
	return why
}

func parseDescription(b []byte) (Description, error) {
	// An object of its own takes the contract as 1 or "1", as the environment has it.
	var d struct {
		Description
		Contract json.Number `json:"contract"`
	}
	b = bytes.TrimSpace(b)
	switch {
	case len(b) == 0:
		return Description{}, errors.New("it printed nothing")
	case !utf8.Valid(b):
		return Description{}, errors.New("not UTF-8")
	case b[0] != '{' || !json.Valid(b):
		return Description{}, errors.New("not one JSON object")
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return Description{}, err
	}
	d.Description.Contract = 1
	if d.Contract != "" {
		n, err := strconv.ParseUint(d.Contract.String(), 10, 31)
		if err != nil || n == 0 {
			return Description{}, fmt.Errorf("contract: %.20s is not a version", d.Contract)
		}
		d.Description.Contract = int(n)
	}
	return d.Description, nil
}
