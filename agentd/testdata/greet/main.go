// Greet is a plugin as its author writes it.
package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/musterhq/muster/plugin"
)

func main() {
	plugin.Main(plugin.Author{
		Description: plugin.Description{Types: []string{"greet"}, Version: "1.0", Description: "Says hello"},
		Run: func(_ context.Context, c plugin.Command, r *plugin.Reporter) error {
			var in struct{ Name string }
			if err := json.Unmarshal(c.Input, &in); err != nil {
				return err
			}
			if in.Name == "" {
				return errors.New("input.name: whom to greet?")
			}
			return r.Result(map[string]string{"hello": in.Name})
		},
	})
}
