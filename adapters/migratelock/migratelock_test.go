package migratelock_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/stub"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/migratelock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// fake is a database that runs a function for each migration.
type fake struct {
	*stub.Stub
	run func(migration string) error
}

func newFake(run func(string) error) *fake {
	return &fake{&stub.Stub{CurrentVersion: database.NilVersion}, run}
}

func (f *fake) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err == nil {
		f.MigrationSequence = append(f.MigrationSequence, string(text))
		err = f.run(string(text))
	}
	return err
}

// Lock is the driver's own, which the guard must not use.
func (f *fake) Lock() error { return errors.New("the driver's own lock") }

func nothing(string) error { return nil }

// migrator has migrations of these names, whose text is the name.
func migrator(t *testing.T, driver database.Driver, names ...string) *migrate.Migrate {
	t.Helper()
	files := make(fstest.MapFS)
	for _, name := range names {
		files[name+".up.sql"] = &fstest.MapFile{Data: []byte(name)}
	}
	source, err := iofs.New(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "fake", driver)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func manager(t *testing.T, server *memlock.Server) *pglock.Manager {
	m := memlock.New(server)
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
	return m
}

func TestOneMigratesAndTheOtherWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		busy := 0
		db := newFake(func(string) error {
			if busy++; busy > 1 {
				t.Error("two migrate at once")
			}
			time.Sleep(3 * time.Second)
			busy--
			return nil
		})
		ended := make(chan error)
		for range 2 {
			go func() { ended <- migrator(t, migratelock.New(db, manager(t, server), "schema"), "1_one", "2_two").Up() }()
		}
		first, second := <-ended, <-ended
		if first != nil || !errors.Is(second, migrate.ErrNoChange) {
			t.Errorf("%v, %v", first, second)
		}
		if !slices.Equal(db.MigrationSequence, []string{"1_one", "2_two"}) || db.CurrentVersion != 2 || db.IsDirty {
			t.Errorf("%v, version %d, dirty %v", db.MigrationSequence, db.CurrentVersion, db.IsDirty)
		}
	})
}

// golang-migrate does not unlock what it has given up waiting for, so the guard
// gives up first, and says so in golang-migrate's words and in ours.
func TestTheGuardGivesUpFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		theirs, err := manager(t, server).Acquire(t.Context(), "schema")
		if err != nil {
			t.Fatal(err)
		}
		ours := manager(t, server)
		for want, opts := range map[time.Duration][]ports.AcquireOption{
			migrate.DefaultLockTimeout - time.Second: nil,
			3 * time.Second:                          {ports.WithTimeout(3 * time.Second)},
		} {
			began := time.Now()
			err = migrator(t, migratelock.New(newFake(nothing), ours, "schema", opts...), "1_one").Up()
			if !errors.Is(err, database.ErrLocked) || !errors.Is(err, ports.ErrNotAcquired) || errors.Is(err, migrate.ErrLockTimeout) {
				t.Error(err)
			}
			if waited := time.Since(began); waited != want {
				t.Errorf("waited %v, want %v", waited, want)
			}
		}
		if err := theirs.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := migrator(t, migratelock.New(newFake(nothing), ours, "schema"), "1_one").Up(); err != nil {
			t.Error(err)
		}
	})
}

// The migration that is under way is finished, the next one does not begin. The
// calls are those of Migrate.Up, which itself would leave a goroutine behind.
func TestALossEndsTheMigrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		locks := manager(t, server)
		db := newFake(nothing)
		d := migratelock.New(db, locks, "schema")
		for _, err := range []error{d.Lock(), d.SetVersion(1, true), d.Run(strings.NewReader("one"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
		server.Kill(server.Holders(locks.KeyID("schema"))[0].PID)
		synctest.Wait()
		if err := d.SetVersion(2, false); !errors.Is(err, ports.ErrLost) {
			t.Errorf("another version is marked as clean: %v", err)
		}
		if err := d.SetVersion(1, false); err != nil {
			t.Errorf("the migration that has run stays dirty: %v", err)
		}
		for what, call := range map[string]func() error{
			"mark": func() error { return d.SetVersion(2, true) }, "clean": func() error { return d.SetVersion(1, false) }, "drop": d.Drop,
		} {
			if err := call(); !errors.Is(err, ports.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := d.Unlock(); !errors.Is(err, ports.ErrLost) {
			t.Error(err)
		}
		if db.CurrentVersion != 1 || db.IsDirty {
			t.Errorf("version %d, dirty %v", db.CurrentVersion, db.IsDirty)
		}

		// The next migrator goes on where that one stopped.
		if err := migrator(t, migratelock.New(db, locks, "schema"), "1_one", "2_two").Up(); err != nil || db.CurrentVersion != 2 {
			t.Errorf("version %d: %v", db.CurrentVersion, err)
		}
	})
}

func TestAFailedMigrationStaysDirtyAndTheLockIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		failed := errors.New("syntax error")
		db := newFake(func(string) error { return failed })
		if err := migrator(t, migratelock.New(db, manager(t, server), "schema"), "1_one").Up(); !errors.Is(err, failed) {
			t.Error(err)
		}
		if db.CurrentVersion != 1 || !db.IsDirty || server.Locks() != 0 {
			t.Errorf("version %d, dirty %v, %d locks", db.CurrentVersion, db.IsDirty, server.Locks())
		}
		m := migrator(t, migratelock.New(db, manager(t, server), "schema"), "1_one")
		if err := m.Up(); !errors.As(err, new(migrate.ErrDirty)) {
			t.Error(err)
		}
		if err := m.Force(1); err != nil || db.IsDirty {
			t.Error(err)
		}
		if err := m.Drop(); err != nil || db.CurrentVersion != database.NilVersion {
			t.Error(err)
		}
	})
}

// The driver itself, as golang-migrate uses it and as it does not.
func TestTheDriverSaysWhatItRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		locks := manager(t, server)
		db := newFake(nothing)
		d := migratelock.New(db, locks, "schema")
		for what, call := range map[string]func() error{
			"Unlock": d.Unlock, "Drop": d.Drop,
			"SetVersion": func() error { return d.SetVersion(1, true) },
			"Force":      func() error { return d.SetVersion(1, false) },
		} {
			if err := call(); !errors.Is(err, database.ErrNotLocked) {
				t.Errorf("%s without the lock: %v", what, err)
			}
		}
		if err := d.Lock(); err != nil {
			t.Fatal(err)
		}
		if err := d.Lock(); !errors.Is(err, database.ErrLocked) {
			t.Errorf("locked twice: %v", err)
		}

		// A driver that is opened has the guard, too.
		opened, err := migratelock.New(&stub.Stub{}, locks, "schema", ports.WithTimeout(0)).Open("stub://")
		if err != nil {
			t.Fatal(err)
		}
		if err := opened.Lock(); !errors.Is(err, database.ErrLocked) {
			t.Errorf("two have the lock: %v", err)
		}

		// Close gives back the lock, and ends a wait.
		waiting := migratelock.New(db, locks, "schema")
		ended := make(chan error)
		go func() { ended <- waiting.Lock() }()
		synctest.Wait()
		if err := waiting.Lock(); !errors.Is(err, database.ErrLocked) {
			t.Errorf("it waits twice: %v", err)
		}
		if err := waiting.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil {
			t.Error("a driver that is closed has the lock")
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

func TestNilPanics(t *testing.T) {
	for what, misuse := range map[string]func(){
		"no driver": func() { migratelock.New(nil, memlock.New(memlock.NewServer()), "k") },
		"no locks":  func() { migratelock.New(&stub.Stub{}, nil, "k") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", what)
				}
			}()
			misuse()
		}()
	}
}
