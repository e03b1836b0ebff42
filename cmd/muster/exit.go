package main

import (
	"errors"
	"fmt"
	"io"
)

// The exit codes of `muster run`, rollouts and apply; the other subcommands use
// the first two, and the last.
const (
	exitOK          = 0   // all succeeded
	exitError       = 1   // usage or server error
	exitFailed      = 2   // some failed
	exitUnreached   = 3   // none failed, but some were unreachable, expired or lost
	exitNoTargets   = 4   // there was nobody to run it
	exitInterrupted = 130 // Ctrl-C; the command goes on
)

// codedError ends the program with a code of its own. An empty text says that
// all has been told.
type codedError struct {
	code int
	text string
}

func (e *codedError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &codedError{exitError, fmt.Sprintf(format, args...)}
}

// endsWith says that err ends the program with the code.
func endsWith(err error, code int) bool {
	coded := (*codedError)(nil)
	return errors.As(err, &coded) && coded.code == code
}

func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	code, text := exitError, err.Error()
	if coded := (*codedError)(nil); errors.As(err, &coded) {
		code = coded.code
	}
	if text != "" {
		fmt.Fprintln(stderr, "muster:", text)
	}
	return code
}
