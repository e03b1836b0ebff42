package commands

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// runSubscribers is the program of many subscribers. They are written by hand and
// do no more than they must, as our lean agents are: a nats.go client each would
// need three goroutines and tens of kilobytes, and would make the reference slow.
func runSubscribers(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("subscribers", flag.ContinueOnError)
	addr := fs.String("address", "", "of the server")
	n := fs.Int("subscribers", 100, "how many")
	if err := fs.Parse(args); err != nil {
		return err
	}
	s := &subscribers{result: fmt.Appendf(nil, " %d\r\n%s\r\n", resultSize, resultOf(resultSize))}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range *n {
		nc, err := dialFrom(ctx, i, *addr)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { nc.Close() })
		s.running.Go(func() {
			if err := s.serve(nc); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "subscriber:", err)
			}
		})
	}
	err := obey(os.Stdin, os.Stdout, map[string]func(string) (any, error){
		"tally": func(string) (any, error) { return Tally{Registered: s.ready.Load(), Results: s.replies.Load()}, nil },
	})
	cancel()
	s.running.Wait()
	return err
}

// subscribers answer each request with the result.
type subscribers struct {
	result  []byte
	ready   atomic.Int64
	replies atomic.Int64
	running sync.WaitGroup
}

func (s *subscribers) serve(nc net.Conn) error {
	defer nc.Close()
	in := bufio.NewReaderSize(nc, 512)
	if _, err := fmt.Fprintf(nc, "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"bench\",\"version\":\"1\",\"protocol\":1}\r\nSUB %s 1\r\nPING\r\n", subject); err != nil {
		return err
	}
	var out []byte
	for {
		line, err := readLine(in)
		if err != nil {
			return err
		}
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "INFO":
		case "PONG":
			s.ready.Add(1)
		case "PING":
			if _, err := io.WriteString(nc, "PONG\r\n"); err != nil {
				return err
			}
		case "MSG": // subject sid reply size
			words := strings.Fields(rest)
			if len(words) != 4 {
				return fmt.Errorf("%q is not a request", line)
			}
			size, err := strconv.Atoi(words[3])
			if err != nil {
				return err
			}
			if _, err := in.Discard(size + 2); err != nil {
				return err
			}
			out = append(append(append(out[:0], "PUB "...), words[2]...), s.result...)
			if _, err := nc.Write(out); err != nil {
				return err
			}
			s.replies.Add(1)
		default:
			return fmt.Errorf("the server says %q", line)
		}
	}
}

// readLine reads a line, however long; INFO is longer than the buffer.
func readLine(in *bufio.Reader) (string, error) {
	var long []byte
	for {
		part, err := in.ReadSlice('\n')
		if err == nil && long == nil {
			return strings.TrimSuffix(string(part), "\r\n"), nil
		}
		long = append(long, part...)
		if err == nil {
			return strings.TrimSuffix(string(long), "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
}
