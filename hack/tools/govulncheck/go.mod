// The scanner of known vulnerabilities has a module of its own, so that its dependencies do not enter
// that of the project. golang.org/x/vulndb is its database; nothing imports it, so that `go mod tidy`
// would remove it.
module github.com/millrace-lb/millrace/hack/tools/govulncheck

go 1.26.0

tool golang.org/x/vuln/cmd/govulncheck

require (
	golang.org/x/vuln v1.9.0
	golang.org/x/vulndb v0.0.0-20261105234957-e22db6528018
)

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/telemetry v0.0.0-20261010193011-f71dc92da45e // indirect
	golang.org/x/tools v0.52.0 // indirect
)
