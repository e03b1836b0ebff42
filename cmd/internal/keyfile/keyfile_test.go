package keyfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeyIsMadeOnceAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	first, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil || again.Public() != first.Public() {
		t.Errorf("another key, %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestC115KeyFileThatCannotBeTrusted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := Load(path); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o644)
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "0644") || !strings.Contains(err.Error(), path) {
		t.Errorf("a key that others may read: %v", err)
	}
	for name, text := range map[string]string{"empty": "", "short": "abc", "long": strings.Repeat("x", 200)} {
		os.WriteFile(path, []byte(text), 0o600)
		os.Chmod(path, 0o600)
		_, err := Load(path)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error tells the key: %v", name, err)
		}
	}
}
