// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// restartDelay is the delay before a restart, like systemd's RestartSec.
	restartDelay = time.Second
	// untilTimeout bounds the wait for external conditions, because a node must boot without the API
	// server.
	untilTimeout = 60 * time.Second
)

// supervisor starts services in order, restarts them and reaps orphans as PID 1.
type supervisor struct {
	spec Spec
	log  *slog.Logger
	// ready has a channel per service, closed when dependent services may start.
	ready map[string]chan struct{}

	mu sync.Mutex
	// exits receives wait statuses. It is guarded by mu from before the fork, so that no exit is missed.
	exits map[int]chan unix.WaitStatus
}

func newSupervisor(spec Spec, log *slog.Logger) *supervisor {
	s := &supervisor{spec: spec, log: log, ready: map[string]chan struct{}{}, exits: map[int]chan unix.WaitStatus{}}
	for _, service := range spec.Services {
		s.ready[service.Name] = make(chan struct{})
	}
	return s
}

func (s *supervisor) start() {
	for _, service := range s.spec.Services {
		go s.run(service)
	}
}

func (s *supervisor) run(service Service) {
	for _, name := range service.After {
		<-s.ready[name]
	}
	if service.Until != nil && !await(*service.Until, untilTimeout) {
		s.log.Warn("starting although a condition is not met", "service", service.Name, "condition", *service.Until)
	}
	for first := true; ; first = false {
		exit, err := s.launch(service)
		if err != nil {
			s.log.Error("service does not start", "service", service.Name, "error", err)
		} else {
			s.log.Info("service started", "service", service.Name)
			if first && !service.Once {
				go s.announce(service)
			}
			status := <-exit
			s.log.Info("service ended", "service", service.Name, "status", status.ExitStatus(), "signal", status.Signal())
			if service.Once && status.ExitStatus() == 0 {
				close(s.ready[service.Name])
				return
			}
		}
		time.Sleep(restartDelay)
	}
}

func (s *supervisor) announce(service Service) {
	if service.Ready != nil {
		await(*service.Ready, 0)
	}
	close(s.ready[service.Name])
}

func (s *supervisor) launch(service Service) (<-chan unix.WaitStatus, error) {
	log, err := os.OpenFile(filepath.Join(LogDir(s.spec.Dir), service.Name+".log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	program, err := lookPath(service.Command[0], s.spec.Path)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	process, err := os.StartProcess(program, service.Command, &os.ProcAttr{
		Dir:   s.spec.Dir,
		Env:   environment(s.spec),
		Files: []*os.File{null, log, log},
		Sys:   &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	exit := make(chan unix.WaitStatus, 1)
	s.exits[process.Pid] = exit
	return exit, process.Release()
}

func (s *supervisor) reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		s.reapEnded()
		<-children
	}
}

func (s *supervisor) reapEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		if exit := s.exits[pid]; exit != nil {
			exit <- status
			delete(s.exits, pid)
		}
	}
}

// environment returns the environment of services, which excludes the lab's.
func environment(spec Spec) []string {
	return []string{
		"PATH=" + spec.Path,
		"HOME=/root",
		"TMPDIR=" + filepath.Join(spec.Dir, "tmp"),
	}
}
