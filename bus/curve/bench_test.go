package curve

import (
	"fmt"
	"testing"
)

func BenchmarkSession(b *testing.B) {
	e := newExchange(b)
	for _, n := range []int{100, 64 << 10} {
		payload, command, back := make([]byte, n), make([]byte, 0, n+Overhead), make([]byte, 0, n)
		b.Run(fmt.Sprintf("Seal/%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				command, _ = e.clientSession.Seal(command[:0], 0, payload)
			}
		})
		b.Run(fmt.Sprintf("Open/%d", n), func(b *testing.B) {
			s := e.serverSession
			s.opened = e.clientSession.sealed - 1
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.Open(back, command); err != nil {
					b.Fatal(err)
				}
				s.opened--
			}
		})
	}
}

func BenchmarkHandshake(b *testing.B) {
	e := newExchange(b)
	b.Run("server/Hello", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h := e.atHello
			if _, err := h.Hello(e.hello); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("server/Initiate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h := e.atInitiate
			if _, _, err := h.Initiate(e.initiate); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("client", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h := e.client.Handshake()
			if _, err := h.Hello(); err != nil {
				b.Fatal(err)
			}
			h = &ClientHandshake{}
			*h = e.atWelcome
			if err := h.Welcome(e.welcome); err != nil {
				b.Fatal(err)
			}
		}
	})
}
