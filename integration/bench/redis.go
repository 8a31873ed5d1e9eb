package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is a Redis that keeps nothing on disk, in a child process.
type redisServer struct {
	address string
	version string
	cmd     *exec.Cmd
	alive   io.Closer // the server ends when it is closed, or when this process ends
	dir     string
}

// redisScript runs Redis for as long as somebody has the other end of its
// standard input.
const redisScript = `"$@" & server=$!; read -r line; kill "$server"; wait "$server"`

// startRedis starts the redis-server that is in PATH.
func startRedis() (_ *redisServer, err error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &redisServer{address: listener.Addr().String()}
	_, port, err := net.SplitHostPort(s.address)
	if err = errors.Join(err, listener.Close()); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "holdfast-redis-"); err != nil {
		return nil, err
	}
	s.cmd = exec.Command("sh", "-c", redisScript, "sh", program,
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no")
	if s.alive, err = s.cmd.StdinPipe(); err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.await(); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// await waits until the server answers.
func (s *redisServer) await() error {
	client := redis.NewClient(&redis.Options{Addr: s.address})
	defer client.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		info, err := client.Info(context.Background(), "server").Result()
		if err == nil {
			s.version = redisField(info, "redis_version")
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redis-server does not answer: %w", err)
		}
	}
}

func (s *redisServer) stop() error {
	err := s.alive.Close()
	_ = s.cmd.Wait() // it says that Redis was ended by a signal, which it was
	return errors.Join(err, os.RemoveAll(s.dir))
}

// redisField finds a field in what INFO says; empty if it is not there.
func redisField(info, field string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
