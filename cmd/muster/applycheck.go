package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// check asks the server about all that a plan would do, so that nothing is done
// when a part of it is refused. It returns every refusal.
func (p *applyPlan) check(ctx context.Context, cl *client) error {
	var refused []error
	toCome := map[string]bool{} // groups that the server does not have yet
	for _, g := range p.Groups {
		toCome[g.Name] = g.Change == added
		if g.Change == unchanged {
			continue
		}
		if err := cl.tryGroup(ctx, g.want, g.have.ETag); err != nil {
			refused = append(refused, fmt.Errorf("group %q: %w", g.Name, err))
		}
	}
	for _, c := range p.Configs {
		if c.Change == unchanged {
			continue
		}
		if err := c.check(ctx, cl, toCome); err != nil {
			refused = append(refused, fmt.Errorf("config %q: %w", c.Name, err))
		}
	}
	return errors.Join(refused...)
}

func (c *configPlan) check(ctx context.Context, cl *client, toCome map[string]bool) error {
	if c.Version == 0 {
		if err := cl.tryVersion(ctx, c.Name, c.want.Kind, c.want.version()); err != nil {
			return err
		}
	}
	if c.putHead {
		if err := c.checkHead(ctx, cl, toCome); err != nil {
			return err
		}
	}
	if !c.rollOut {
		return nil
	}
	// A version that is to be made cannot be asked about: the bound one stands for it.
	_, _, err := cl.startRollout(ctx, c.Name, c.rollout(cmp.Or(c.Version, c.From)), true)
	if hasCode(err, "NO_TARGETS") {
		return nil
	}
	return err
}

// checkHead leaves out the bindings that name what is not there yet: a group or
// a version that comes before them.
func (c *configPlan) checkHead(ctx context.Context, cl *client, toCome map[string]bool) error {
	body := c.head()
	if c.have == nil {
		return cl.tryConfig(ctx, body, "")
	}
	body.Bindings = slices.DeleteFunc(slices.Clone(c.Bindings), func(b binding) bool { return toCome[b.Group] || b.Version == 0 })
	return cl.tryConfig(ctx, body, c.have.ETag)
}
