package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/musterhq/muster/cmd/internal/simagent"
)

// formatOf is the function that writes a report in a format.
func formatOf(name string) (func(io.Writer, simagent.Report) error, error) {
	switch name {
	case "text":
		return printText, nil
	case "json":
		return printJSON, nil
	}
	return nil, fmt.Errorf("--output %q: want text or json", name)
}

// progress writes a line each second.
func progress(ctx context.Context, w io.Writer, f *simagent.Fleet) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r := f.Report()
			fmt.Fprintf(w, "%4.0fs  connected %d, registered %d of %d; commands %d, answered %d, acked %d; beats %d; errors %d\n",
				r.Running.Seconds(), r.Connected, r.Registered, r.Agents, r.Commands, r.Answered, r.Acked, r.Beats, errorsOf(r))
		case <-ctx.Done():
			return
		}
	}
}

func errorsOf(r simagent.Report) (n int64) {
	for _, k := range r.Errors {
		n += k
	}
	return n
}

func printText(w io.Writer, r simagent.Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "agents\t%d\tfor %v: connected %d, registered %d; %d registrations\n", r.Agents, r.Running.Round(time.Millisecond), r.Connected, r.Registered, r.Registrations)
	fmt.Fprintf(t, "commands\t%d\tanswered %d, acked %d, failed %d, cancelled %d; copies %d; sent again %d; chunks %d\n", r.Commands, r.Answered, r.Acked, r.Failed, r.Cancelled, r.Repeats, r.Resent, r.Chunks)
	fmt.Fprintf(t, "vanished\t%d\t\n", r.Vanished)
	fmt.Fprintf(t, "beats\t%d\tanswered %d\n", r.Beats, r.BeatAcks)
	fmt.Fprintf(t, "errors\t%d\t%s\n", errorsOf(r), kinds(r.Errors))
	fmt.Fprintf(t, "memory\t%.1f MiB\t%.1f KiB for each agent\n", float64(r.Memory)/(1<<20), perAgent(r)/(1<<10))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "latency\tcount\tp50\tp90\tp99\tp99.9\tlongest\t")
	for _, row := range []struct {
		name string
		simagent.Times
	}{{"register", r.Register}, {"beat", r.Beat}, {"ack", r.Ack}} {
		fmt.Fprintf(t, "%s\t%d\t%v\t%v\t%v\t%v\t%v\t\n", row.name, row.Count, row.P50, row.P90, row.P99, row.P999, row.Longest)
	}
	return t.Flush()
}

// kinds lists errors, the most frequent first.
func kinds(errors map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(errors[b], errors[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %d", name, errors[name]))
	}
	return strings.Join(parts, ", ")
}

func perAgent(r simagent.Report) float64 { return float64(r.Memory) / float64(r.Agents) }

// reportJSON is the report for programs; its names are a promise.
type reportJSON struct {
	Agents         int                    `json:"agents"`
	Seconds        float64                `json:"seconds"`
	Connected      int64                  `json:"connected"`
	Registered     int64                  `json:"registered"`
	Registrations  int64                  `json:"registrations"`
	Commands       int64                  `json:"commands"`
	Repeats        int64                  `json:"repeats"`
	Answered       int64                  `json:"answered"`
	Acked          int64                  `json:"acked"`
	Failed         int64                  `json:"failed"`
	Cancelled      int64                  `json:"cancelled"`
	Vanished       int64                  `json:"vanished"`
	Resent         int64                  `json:"resent"`
	Chunks         int64                  `json:"chunks"`
	Beats          int64                  `json:"beats"`
	BeatAcks       int64                  `json:"beat_acks"`
	Latency        map[string]latencyJSON `json:"latency"`
	Errors         map[string]int64       `json:"errors"`
	MemoryBytes    int64                  `json:"memory_bytes"`
	MemoryPerAgent float64                `json:"memory_bytes_per_agent"`
}

// latencyJSON has its times in milliseconds.
type latencyJSON struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

func printJSON(w io.Writer, r simagent.Report) error {
	errors := r.Errors
	if errors == nil {
		errors = map[string]int64{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(reportJSON{
		Agents: r.Agents, Seconds: r.Running.Seconds(),
		Connected: r.Connected, Registered: r.Registered, Registrations: r.Registrations,
		Commands: r.Commands, Repeats: r.Repeats, Answered: r.Answered, Acked: r.Acked, Failed: r.Failed,
		Cancelled: r.Cancelled, Vanished: r.Vanished, Resent: r.Resent, Chunks: r.Chunks,
		Beats: r.Beats, BeatAcks: r.BeatAcks,
		Latency: map[string]latencyJSON{"register": inMillis(r.Register), "beat": inMillis(r.Beat), "ack": inMillis(r.Ack)},
		Errors:  errors, MemoryBytes: r.Memory, MemoryPerAgent: perAgent(r),
	})
}

func inMillis(t simagent.Times) latencyJSON {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return latencyJSON{Count: t.Count, P50: ms(t.P50), P90: ms(t.P90), P99: ms(t.P99), P999: ms(t.P999), Max: ms(t.Longest)}
}
