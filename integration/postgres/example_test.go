package postgres_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

func ExampleStart() {
	server, err := postgres.Start(context.Background(),
		postgres.WithVersion(postgres.Newest),
		postgres.WithSettings(map[string]string{"deadlock_timeout": "50ms"}),
		postgres.WithLog(log.Printf))
	if err != nil {
		log.Fatal(err)
	}
	defer server.Stop()
	fmt.Println(server.Describe())
	fmt.Println(server.DSN() + "&application_name=demo")
}

func ExampleServer_Restart() {
	server, err := postgres.Start(context.Background(), postgres.WithProvider("local"))
	if err != nil {
		log.Fatal(err)
	}
	defer server.Stop()
	// As in a crash: every client is cut off, and the server recovers.
	if err := server.Restart("immediate"); err != nil {
		log.Fatal(err)
	}
}
