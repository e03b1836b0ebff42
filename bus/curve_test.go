package bus_test

import (
	"testing"
	"testing/synctest"

	"github.com/musterhq/muster/bus"
)

func TestCurveServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStationOf(t, bus.Config{}, true)
		r := s.enter()
		r.served()
		r.register()
		r.send(sized(t, 8<<20))
		r.served()
	})
}
