module github.com/holdfast-go/holdfast/adapters/gooselock

go 1.25.0

replace github.com/holdfast-go/holdfast => ../../

require (
	github.com/holdfast-go/holdfast v0.0.0-00010101000000-000000000000
	github.com/pressly/goose/v3 v3.27.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/sethvargo/go-retry v0.3.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
