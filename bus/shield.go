package bus

import "runtime/debug"

// shielded calls fn, which runs callbacks. A panic in one becomes an error, which
// ends the link it was called for and no other.
func (b *core) shielded(fn func() error) (err error) {
	defer b.recovered(&err)
	return fn()
}

// recovered, deferred, makes an error of a panic.
func (b *core) recovered(err *error) {
	r := recover()
	if r == nil {
		return
	}
	*err = refuse("panic", "panic: %v", r)
	b.log.error((*err).Error(), "panic in a callback", "err", r, "stack", string(debug.Stack()))
}
