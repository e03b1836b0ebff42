package main

import (
	"bufio"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

// storeFile is in the data folder of `up`.
const storeFile = "muster.db"

// The store commands work on the file of a coordinator that does not run: they
// take its lock, or say that somebody has it.

func storePath(c *cli.Context) (string, error) {
	if c.NArg() > 0 {
		return "", usagef("store %s takes no arguments, got %q", c.Command.Name, c.Args().First())
	}
	return filepath.Join(c.String("data"), storeFile), nil
}

func storeDataFlag() cli.Flag {
	return &cli.StringFlag{Name: "data", Usage: "data folder `DIR` of a coordinator that does not run", Value: defaultData(), EnvVars: []string{"MUSTER_DATA"}}
}

func storeCheckCommand() *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "read all of the store file and tell what is wrong with it; changes nothing",
		Flags: []cli.Flag{storeDataFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			path, err := storePath(c)
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			report, err := boltstore.Check(c.Context, path, coordinator.CheckRow)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.App.Writer, report)
			} else {
				printReport(c, report)
			}
			if err == nil && !report.Sound() {
				err = fmt.Errorf("store file %s is damaged: %d faults; put a copy of the file back, or move it away to start with an empty history", path, report.Count)
			}
			return err
		},
	}
}

func printReport(c *cli.Context, r *boltstore.Report) {
	rows := make([][]string, len(r.Spaces))
	for i, s := range r.Spaces {
		rows[i] = []string{string(s.Name), strconv.Itoa(s.Rows), strconv.FormatInt(s.Bytes, 10)}
	}
	printFacts(c, [][2]string{{"file", r.Path}, {"bytes", strconv.FormatInt(r.Size, 10)}, {"used", strconv.FormatInt(r.Used, 10)}})
	if len(rows) > 0 {
		printTable(c.App.Writer, []string{"SPACE", "ROWS", "BYTES"}, rows)
	}
	for _, fault := range r.Faults {
		fmt.Fprintln(c.App.Writer, "fault:", clean(fault))
	}
	if more := r.Count - len(r.Faults); more > 0 {
		fmt.Fprintln(c.App.Writer, "fault: and", more, "more")
	}
	if r.Sound() {
		fmt.Fprintln(c.App.Writer, "sound")
	}
}

func storeCompactCommand() *cli.Command {
	return &cli.Command{
		Name:  "compact",
		Usage: "write the store file anew without the room that removed history has left; the old one is kept beside it as " + storeFile + ".old",
		Flags: []cli.Flag{
			storeDataFlag(),
			&cli.BoolFlag{Name: "discard-old", Usage: "do not keep the old file", EnvVars: []string{"MUSTER_DISCARD_OLD"}},
		},
		Action: func(c *cli.Context) error {
			path, err := storePath(c)
			if err != nil {
				return err
			}
			done, err := boltstore.Compact(c.Context, path, c.Bool("discard-old"))
			if err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "%s: %d bytes, were %d\n", done.Path, done.After, done.Before)
			if done.Old != "" {
				fmt.Fprintf(c.App.Writer, "%s: the file as it was; remove it when you like\n", done.Old)
			}
			return nil
		},
	}
}

func storeExportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write all commands and their targets to standard output, a JSON object a line",
		Flags: []cli.Flag{storeDataFlag()},
		Action: func(c *cli.Context) error {
			path, err := storePath(c)
			if err != nil {
				return err
			}
			db, err := boltstore.Open(path, boltstore.Options{Existing: true}, coordinator.Spaces...)
			if err != nil {
				return err
			}
			defer db.Close()
			skipped := 0
			out := bufio.NewWriter(c.App.Writer)
			err = coordinator.Export(c.Context, db, out, func(err error) {
				skipped++
				fmt.Fprintln(c.App.ErrWriter, "muster: left out:", clean(err.Error()))
			})
			if ferr := out.Flush(); err == nil {
				err = ferr
			}
			if err == nil && skipped > 0 {
				err = fmt.Errorf("%d records could not be read and were left out", skipped)
			}
			return err
		},
	}
}
