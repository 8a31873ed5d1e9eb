module github.com/holdfast-go/holdfast/adapters/gocronlock

go 1.25.0

replace github.com/holdfast-go/holdfast => ../../

require (
	github.com/go-co-op/gocron/v2 v2.16.1
	github.com/holdfast-go/holdfast v0.0.0-00010101000000-000000000000
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
)
