// Package keyfile keeps the CURVE secret key of a program in a file of its data
// folder.
package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/musterhq/muster/bus"
)

// Load reads the secret key in path, or makes one there (mode 0600) when there
// is no such file. A file that others may read, or that holds no key, is an
// error: a new key would not be the one that others know.
func Load(path string) (bus.SecretKey, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return create(path)
	}
	if err != nil {
		return bus.SecretKey{}, fmt.Errorf("key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return bus.SecretKey{}, fmt.Errorf("key: %w", err)
	}
	if open := info.Mode().Perm() &^ 0o600; open != 0 {
		return bus.SecretKey{}, fmt.Errorf("key: %s has mode %04o, so others may know the key; if they do not, chmod it to 0600", path, info.Mode().Perm())
	}
	text := make([]byte, 128)
	n, err := f.Read(text)
	if err != nil && n == 0 {
		return bus.SecretKey{}, fmt.Errorf("key: %s is empty: restore it, or remove it to have a new key made", path)
	}
	secret, err := bus.ParseSecretKey(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return bus.SecretKey{}, fmt.Errorf("key: %s: %w; restore it, or remove it to have a new key made", path, err)
	}
	return secret, nil
}

// create writes a new key under another name first, so that a crash leaves a
// whole file or none.
func create(path string) (bus.SecretKey, error) {
	_, secret, err := bus.NewKeyPair()
	if err != nil {
		return bus.SecretKey{}, fmt.Errorf("key: %w", err)
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return bus.SecretKey{}, fmt.Errorf("key: %w", err)
	}
	_, err = f.WriteString(secret.Z85() + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return bus.SecretKey{}, fmt.Errorf("key: %w", err)
	}
	return secret, nil
}
