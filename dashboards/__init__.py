"""The Grafana dashboards of watchtower. `make dashboards` writes their JSON files."""
