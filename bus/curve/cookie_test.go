package curve

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestCookiePeriods(t *testing.T) {
	for _, c := range []struct {
		before, age time.Duration // from the first cookie to this one, and from this one to INITIATE
		good        bool
	}{
		{0, 0, true},
		{0, 59 * time.Second, true},
		{0, 61 * time.Second, false},
		{29 * time.Second, 30 * time.Second, true},
		{29 * time.Second, 32 * time.Second, false},
		{31 * time.Second, 58 * time.Second, true},
		{31 * time.Second, 60 * time.Second, false},
		{10 * time.Minute, 59 * time.Second, true},
		{10 * time.Minute, 61 * time.Second, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var jar cookieJar
			public, secret := newPair(t)
			jar.bake(&public, secret)
			time.Sleep(c.before)
			cookie := jar.bake(&public, secret)
			time.Sleep(c.age)
			gotPublic, gotSecret, ok := jar.open(cookie[:])
			if ok != c.good {
				t.Errorf("after %v, aged %v: opens %t", c.before, c.age, ok)
			}
			if ok && (gotPublic != public || gotSecret.Public() != secret.Public()) {
				t.Errorf("after %v, aged %v: other keys", c.before, c.age)
			}
		})
	}
}

// The keys of cookies that nobody brings back are wiped, too.
func TestCookieKeysAreWiped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jar cookieJar
		public, secret := newPair(t)
		look := func(check func(fresh, stale *[keySize]byte)) {
			synctest.Wait()
			jar.mu.Lock()
			defer jar.mu.Unlock()
			check(jar.fresh, jar.stale)
		}
		var first, second *[keySize]byte
		var wiped [keySize]byte

		jar.bake(&public, secret)
		look(func(fresh, _ *[keySize]byte) { first = fresh })
		time.Sleep(cookiePeriod)
		look(func(fresh, stale *[keySize]byte) {
			if fresh != nil || stale != first || *first == wiped {
				t.Error("the first key is not kept for a second period")
			}
		})
		jar.bake(&public, secret)
		look(func(fresh, stale *[keySize]byte) {
			if second = fresh; second == first || *second == *first || stale != first {
				t.Error("the first key bakes in the second period")
			}
		})
		time.Sleep(cookiePeriod)
		look(func(fresh, stale *[keySize]byte) {
			if *first != wiped || fresh != nil || stale != second {
				t.Error("the first key is not wiped after its second period")
			}
		})
		time.Sleep(cookiePeriod)
		look(func(fresh, stale *[keySize]byte) {
			if *second != wiped || fresh != nil || stale != nil || jar.turning {
				t.Error("a quiet jar keeps a key, or its timer")
			}
		})
	})
}

func TestCookieOfAnotherServer(t *testing.T) {
	var jar, other cookieJar
	public, secret := newPair(t)
	cookie := jar.bake(&public, secret)
	if _, _, ok := other.open(cookie[:]); ok {
		t.Error("an empty jar opens it")
	}
	other.bake(&public, secret)
	if _, _, ok := other.open(cookie[:]); ok {
		t.Error("it opens")
	}
}
