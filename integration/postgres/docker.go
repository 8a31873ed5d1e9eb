package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// Limits of what is asked of a container engine.
const (
	pingPatience = 2 * time.Second
	pullPatience = 8 * time.Second // without any progress
	pullLimit    = 3 * time.Minute // with progress

	// containerLife is how long a container stays if the process that
	// started it was killed and could not remove it.
	containerLife = time.Hour

	removePatience = 10 * time.Second
)

const officialImage = "postgres"

// containerLabel is on every container, with the id of the process that made it.
const containerLabel = "holdfast.postgres.process"

// startDocker gives a server in a container.
func startDocker(ctx context.Context, c config) (*Server, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, fmt.Errorf("no container engine: %w", err)
	}
	if err := ping(ctx, pool.Client); err != nil {
		return nil, fmt.Errorf("no container engine answers: %w", err)
	}
	repository, tag, err := c.imageName()
	if err != nil {
		return nil, err
	}
	image, err := imageFor(ctx, c, pool.Client, repository, tag)
	if err != nil {
		return nil, err
	}
	// Most images say in advance which version they have.
	if major, ok := imageVersion(image); ok {
		if err := c.check(major); err != nil {
			return nil, fmt.Errorf("image %s:%s has %w", repository, tag, err)
		}
	}

	password := rand.Text()
	var flags []string
	settings := c.allSettings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		flags = append(flags, "-c", name+"="+settings[name])
	}
	const port = "5432/tcp"
	container, err := pool.RunWithOptions(&dockertest.RunOptions{
		Repository: repository,
		Tag:        tag,
		Env: []string{
			"POSTGRES_USER=" + roleName,
			"POSTGRES_PASSWORD=" + password,
			"POSTGRES_DB=" + databaseName,
		},
		Cmd:          flags,
		Labels:       map[string]string{containerLabel: strconv.Itoa(os.Getpid())},
		ExposedPorts: []string{port},
		PortBindings: map[docker.Port][]docker.PortBinding{port: {{HostIP: "127.0.0.1"}}},
	}, func(host *docker.HostConfig) {
		host.AutoRemove = true
		host.PublishAllPorts = false
	})
	if err != nil {
		return nil, fmt.Errorf("image %s:%s does not run: %w", repository, tag, err)
	}
	// With AutoRemove, the engine stops and removes the container when its
	// time is up, whether or not this process is still there.
	if err := container.Expire(uint(containerLife.Seconds())); err != nil {
		return nil, errors.Join(err, removeContainer(pool.Client, container.Container.ID))
	}

	address := net.JoinHostPort("127.0.0.1", container.GetPort(port))
	server := &Server{
		provider: dockerProvider,
		dsn:      dsnFor(address, password, databaseName),
		place:    fmt.Sprintf("image %s:%s, at %s", repository, tag, address),
		remove:   func() error { return removeContainer(pool.Client, container.Container.ID) },
	}
	if err := server.awaitContainer(ctx, c, pool.Client, container.Container.ID); err != nil {
		return nil, errors.Join(err, server.remove())
	}
	return server, nil
}

// dsnFor returns the address of a database of a server that is started here.
func dsnFor(address, password, database string) string {
	dsn := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(roleName, password),
		Host:     address,
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

func ping(ctx context.Context, client *docker.Client) error {
	ctx, cancel := context.WithTimeout(ctx, pingPatience)
	defer cancel()
	return client.PingWithContext(ctx)
}

// imageName returns the repository and the tag of the image to run.
func (c config) imageName() (repository, tag string, err error) {
	if c.image == "" {
		return officialImage, strconv.Itoa(c.versionToFetch()), nil
	}
	if strings.Contains(c.image, "@") {
		return "", "", fmt.Errorf("image %s: want a tag, not a digest", c.image)
	}
	repository, tag = docker.ParseRepositoryTag(c.image)
	switch {
	case tag != "":
	case c.version != 0:
		tag = strconv.Itoa(c.version)
	default:
		tag = "latest"
	}
	return repository, tag, nil
}

// imageFor returns the image, which it pulls if the engine does not have it. A
// registry that cannot be reached is given up after a few seconds, a slow one
// is not.
func imageFor(ctx context.Context, c config, client *docker.Client, repository, tag string) (*docker.Image, error) {
	name := repository + ":" + tag
	image, err := client.InspectImage(name)
	if !errors.Is(err, docker.ErrNoSuchImage) {
		return image, err
	}
	c.log("docker: pulling %s", name)
	ctx, cancel := context.WithTimeout(ctx, pullLimit)
	defer cancel()
	ctx, stall := context.WithCancelCause(ctx)
	defer stall(nil)
	stalled := time.AfterFunc(pullPatience, func() { stall(fmt.Errorf("no progress in %s", pullPatience)) })
	defer stalled.Stop()
	err = client.PullImage(docker.PullImageOptions{
		Repository:   repository,
		Tag:          tag,
		OutputStream: writerFunc(func() { stalled.Reset(pullPatience) }),
		Context:      ctx,
	}, docker.AuthConfiguration{})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("no image %s, and pulling it failed: %w", name, err)
	}
	return client.InspectImage(name)
}

// writerFunc is a writer that only tells that something was written.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// imageVersion returns the major version that the image says it has, as the
// official one and ours do.
func imageVersion(image *docker.Image) (major int, ok bool) {
	if image.Config == nil {
		return 0, false
	}
	for _, variable := range image.Config.Env {
		if value, found := strings.CutPrefix(variable, "PG_MAJOR="); found {
			major, err := strconv.Atoi(value)
			return major, err == nil
		}
	}
	return 0, false
}

// awaitContainer waits until the server in the container takes connections.
func (s *Server) awaitContainer(ctx context.Context, c config, client *docker.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()

	// A container that ends is removed at once, and its log with it; so the
	// log is read from the start. Its end is the end of the container.
	var log lockedBuffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// An error means that there is nothing to read any more, or that ctx
		// is done.
		_ = client.Logs(docker.LogsOptions{
			Context:      ctx,
			Container:    id,
			OutputStream: &log,
			ErrorStream:  &log,
			Stdout:       true,
			Stderr:       true,
			Follow:       true,
		})
	}()
	conn, err := connect(ctx, s.dsn, ended)
	if err != nil {
		return fmt.Errorf("%w; its log ends: %s", err, lastLines(log.String()))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return s.readVersion(ctx, conn, c)
}

// lockedBuffer is a buffer that can be read while it is written.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// removeContainer ends the container and waits until it is gone.
func removeContainer(client *docker.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removePatience)
	defer cancel()
	err := client.RemoveContainer(docker.RemoveContainerOptions{ID: id, Force: true, RemoveVolumes: true, Context: ctx})
	var gone *docker.NoSuchContainer
	var refused *docker.Error
	switch {
	case err == nil, errors.As(err, &gone):
	case errors.As(err, &refused) && refused.Status == http.StatusConflict:
		// AutoRemove came first; it is waited for below.
	default:
		return err
	}
	for {
		_, err := client.InspectContainerWithContext(id, ctx)
		if errors.As(err, &gone) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("container %s is still there after %s", id, removePatience)
		case <-time.After(attemptPause):
		}
	}
}
