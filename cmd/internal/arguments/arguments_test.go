package arguments

import (
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestArrange(t *testing.T) {
	commands := []*cli.Command{
		{Name: "run", Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all"}, &cli.StringFlag{Name: "timeout"}, &cli.StringFlag{Name: "output", Aliases: []string{"o"}},
		}},
		{Name: "agents", Subcommands: []*cli.Command{{Name: "show", Flags: []cli.Flag{&cli.StringFlag{Name: "o"}}}}},
	}
	for _, tc := range []struct{ args, want string }{
		{"muster", "muster"},
		{"muster --help", "muster --help"},
		{"muster nonsense -x", "muster nonsense -x"},
		{"muster agents", "muster agents"},
		{"muster agents shwo web-1", "muster agents shwo web-1"},
		{"muster run web-1", "muster run -- web-1"},
		{"muster run --all", "muster run --all --"},
		{"muster run --all -- uptime -p", "muster run --all -- -- uptime -p"},
		{"muster run web-1 -- uptime -- x", "muster run -- web-1 -- uptime -- x"},
		{"muster run web-1 --timeout 30s web-2 -o json -- ls -o", "muster run --timeout 30s -o json -- web-1 web-2 -- ls -o"},
		{"muster run web-1 --timeout=30s web-2", "muster run --timeout=30s -- web-1 web-2"},
		{"muster run web-1 --all web-2", "muster run --all -- web-1 web-2"},
		{"muster run web-1 --timeout -- ls", "muster run --timeout -- web-1 -- ls"},
		{"muster run web-1 --wrong", "muster run --wrong -- web-1"},
		{"muster run - web-1", "muster run -- - web-1"},
		{"muster agents show web-1 -o json", "muster agents show -o json -- web-1"},
	} {
		args := strings.Fields(tc.args)
		if got := strings.Join(Arrange(commands, args), " "); got != tc.want {
			t.Errorf("%s\n got %s\nwant %s", tc.args, got, tc.want)
		}
		if strings.Join(args, " ") != tc.args {
			t.Errorf("%s: the arguments themselves were changed", tc.args)
		}
	}
}

func TestSplit(t *testing.T) {
	before, after, found := Split([]string{"a", "--", "b", "--"})
	if !found || !slices.Equal(before, []string{"a"}) || !slices.Equal(after, []string{"b", "--"}) {
		t.Errorf("%q %q %v", before, after, found)
	}
	if before, after, found := Split([]string{"a"}); found || len(before) != 1 || after != nil {
		t.Errorf("%q %q %v", before, after, found)
	}
}
