"""Object stores on loopback, started by the tests; nothing here talks to any other address."""
