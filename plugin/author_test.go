package plugin

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
)

func ExampleMain() {
	greet := Author{
		Description: Description{Version: "1.0", Description: "says hello"},
		Run: func(_ context.Context, c Command, r *Reporter) error {
			return r.Result(map[string]string{"hello": c.AgentID})
		},
	}
	// A plugin's main would be Main(greet).
	greet.main(context.Background(), []string{"describe"}, os.Stdin, os.Stdout, os.Stderr)
	// Output: {"contract":1,"version":"1.0","description":"says hello"}
}

func TestAuthor(t *testing.T) {
	for _, c := range []struct {
		name, args, in string
		run            func(ctx context.Context, c Command, r *Reporter) error
		code           int
		out, err       string
	}{
		{"all kinds of lines", "run", `{"id":"1","input":{"n":9007199254740993}}`, func(_ context.Context, c Command, r *Reporter) error {
			return errors.Join(r.Progress(0.5), r.Resource(map[string]string{"kind": "disk"}), r.Result(c.Input))
		}, 0, `{"progress":0.5}` + "\n" + `{"resource":{"kind":"disk"}}` + "\n" + `{"result":{"n":9007199254740993}}` + "\n", ""},
		{"no result", "run", `{}`, func(context.Context, Command, *Reporter) error { return nil }, 0, `{"result":null}` + "\n", ""},
		{"failed", "run", `{}`, func(_ context.Context, _ Command, r *Reporter) error { return errors.New("broken") }, 1, "", "broken\n"},
		{"overlooked", "run", `{}`, func(_ context.Context, _ Command, r *Reporter) error {
			_ = r.Progress(math.NaN())
			return r.Result(1)
		}, 1, `{"result":1}` + "\n", "progress: json: unsupported"},
		{"second result", "run", `{}`, func(_ context.Context, _ Command, r *Reporter) error {
			return errors.Join(r.Result(1), r.Result(2))
		}, 1, `{"result":1}` + "\n", "follows the result"},
		{"too long", "run", `{}`, func(_ context.Context, _ Command, r *Reporter) error {
			return r.Result(strings.Repeat("x", MaxLine))
		}, 1, "", "at most"},
		{"no command", "run", ``, nil, 1, "", "command on standard input"},
		{"no verb", "", ``, nil, 2, "", "plugin of muster"},
		{"another verb", "serve", ``, nil, 2, "", "plugin of muster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := Author{Run: c.run}.main(t.Context(), strings.Fields(c.args), strings.NewReader(c.in), &out, &errs)
			if code != c.code || out.String() != c.out || !strings.Contains(errs.String(), c.err) || (c.err == "") != (errs.Len() == 0) {
				t.Errorf("code %d, out %q, err %q", code, out.String(), errs.String())
			}
			if l, err := lines(out.String()); code == 0 && err != nil {
				t.Errorf("the agent would not take it: %s, %v", l, err)
			}
		})
	}
}
