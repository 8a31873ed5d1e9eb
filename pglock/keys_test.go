package pglock_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/pglock"
)

// The vectors were computed by the other implementations of the two schemes.
func TestKeysMatchTheirEcosystems(t *testing.T) {
	for _, v := range []struct {
		key         string
		sha256, fnv int64
	}{
		{"my-lock", 8110642715282547285, -546483653120779755},
		{"migration:tenant-abc", 2549018982395383070, -8368135580791816138},
		{"日本語", 8606672379249086371, -1252314375984451705},
		{"", 7183457195969485844, -3750763034362895579},
	} {
		if got := pglock.SHA256Key(v.key); got != v.sha256 {
			t.Errorf("SHA256Key(%q) = %d, want %d", v.key, got, v.sha256)
		}
		if got := pglock.FNV1aKey(v.key); got != v.fnv {
			t.Errorf("FNV1aKey(%q) = %d, want %d", v.key, got, v.fnv)
		}
	}
	if got := pglock.MigrationKey("tenant-abc", "migration"); got != "migration:tenant-abc" {
		t.Errorf("MigrationKey = %q", got)
	}
}

// Unrelated jobs block each other if their names share an ID, as 200,000 names
// do with a 32-bit hash.
func TestCase33NamesDoNotCollide(t *testing.T) {
	for name, derive := range map[string]func(string) int64{"SHA256Key": pglock.SHA256Key, "FNV1aKey": pglock.FNV1aKey} {
		seen := make(map[int64]string, 200_000)
		for i := range 200_000 {
			key := fmt.Sprintf("job-%d", i)
			if other, ok := seen[derive(key)]; ok {
				t.Fatalf("%s: %q and %q share an ID", name, key, other)
			}
			seen[derive(key)] = key
		}
	}
}

func FuzzSHA256KeyIsNeverNegative(f *testing.F) {
	f.Add("my-lock")
	f.Add("\xff\x00")
	f.Fuzz(func(t *testing.T, key string) {
		if pglock.SHA256Key(key) < 0 {
			t.Errorf("SHA256Key(%q) is negative", key)
		}
	})
}
