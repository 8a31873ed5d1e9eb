module github.com/holdfast-go/holdfast/adapters/migratelock

go 1.25.0

replace github.com/holdfast-go/holdfast => ../../

require (
	github.com/golang-migrate/migrate/v4 v4.18.0
	github.com/holdfast-go/holdfast v0.0.0-00010101000000-000000000000
)

require (
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	go.uber.org/atomic v1.7.0 // indirect
)
