// Command pglock runs commands under locks on PostgreSQL, and shows and ends the
// locks that there are.
//
// It is to a fleet what flock is to a host: of all hosts that run
//
//	pglock run nightly-report -- ./report.sh
//
// one at a time runs the report. The lock is the one that a Go service has with
// Holdfast under the same key.
//
// It promises what a Holdfast lock promises: one holder per key and database for
// as long as the holder's server session lives. A command whose lock is lost is
// ended. It does not promise that a command which ignores SIGTERM stops before
// the grace has passed, and it can do nothing if it is itself ended with
// SIGKILL; on Linux the command is then killed, too, but not what the command
// has started.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes, beside those of the command that was run. They are those of
// sysexits.h and of shells.
const (
	exitWrong       = 1   // doctor has found something wrong
	exitUsage       = 64  // the command line is wrong
	exitUnavailable = 69  // the database cannot be used
	exitConflict    = 75  // someone else has the lock
	exitLost        = 76  // the lock was lost
	exitNotRunnable = 126 // the command cannot be run
	exitNotFound    = 127 // the command was not found
	exitSignal      = 128 // and the number of the signal that ended it
)

// exit is an error with an exit code. One without a message says nothing.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usage makes an error of what the user wrote.
func usage(format string, args ...any) error {
	return &exit{exitUsage, fmt.Errorf(format, args...)}
}

// unavailable makes an error of what the database did; nil stays nil.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &exit{exitUnavailable, err}
}

func init() {
	// On Linux a command gets its last signal when the thread that started it
	// ends. This one ends with the process.
	runtime.LockOSThread()
}

func main() {
	os.Exit(execute(os.Args[1:]))
}

// execute runs the tool and returns its exit code.
func execute(args []string) int {
	root := rootCommand()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return 0
	}
	code := exitUsage // everything else that cobra returns is about the command line
	var e *exit
	if errors.As(err, &e) {
		code = e.code
	}
	if message := oneLine(err); message != "" {
		if code == exitUsage {
			message += "; see " + command.CommandPath() + " --help"
		}
		fmt.Fprintln(os.Stderr, "pglock: "+message)
	}
	return code
}

// oneLine makes one line of what an error says: those of drivers have several.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\t' || r == '\r' }), " ")
}

const rootHelp = `Run commands under locks on PostgreSQL, and look after the locks. The database
is the one of --database-url, else of DATABASE_URL, else of PGHOST, PGUSER and
the other variables of libpq.

Exit codes: 64 wrong usage, 69 no usable database, 75 someone else has the lock,
76 the lock was lost, 1 doctor has found something wrong; of run, those of its
command, 128+N if signal N ended it, 126 or 127 if it could not be run.`

// usageTemplate is cobra's, for a screen of 80 columns: it wraps lines some columns early.
const usageTemplate = `Usage: {{if .Runnable}}{{.UseLine}}{{end}}{{if not .HasParent}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 86 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsagesWrapped 86 | trimTrailingWhitespaces}}{{end}}
`

// rootCommand builds the command line.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "pglock COMMAND [flags]",
		Short:         "Run commands under locks on PostgreSQL, and look after the locks",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no command %q%s", args[0], suggestion(cmd, args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var c connection
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&c.url, "database-url", "", "the database, as `URL` or as key=value words")
	flags.StringVar(&c.scheme, "scheme", schemes[0].name, "how keys become IDs: `NAME` as in 'pglock id'")
	flags.StringVar(&c.namespace, "namespace", "", "`PREFIX` of every key, as in WithNamespace")
	root.AddCommand(runCommand(&c), lsCommand(&c), evictCommand(&c), doctorCommand(&c), idCommand(&c))
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	for _, command := range root.Commands() {
		command.Flags().SortFlags = false
		command.DisableFlagsInUseLine = true
	}
	return root
}

// suggestion is what the user may have meant.
func suggestion(cmd *cobra.Command, arg string) string {
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if like := cmd.SuggestionsFor(arg); len(like) > 0 {
		return ": did you mean " + strings.Join(like, " or ") + "?"
	}
	return ""
}
