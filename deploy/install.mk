# Installs a daemon as a systemd service; nothing is enabled or started. docs/install.md explains.
#   DESTDIR  prepended to every path, for packages and tests
#   PREFIX   where the virtual environment is; the units are written for it

PREFIX := /opt/watchtower
SYSCONFDIR := /etc/watchtower
UNITDIR := /etc/systemd/system
SYSUSERSDIR := /etc/sysusers.d

# A Python of the system: the services cannot read home directories.
SERVICE_PYTHON ?= $(shell for p in /usr/bin/python3 /usr/bin/python3.1[0-9] /usr/local/bin/python3; do \
	$$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && \
	echo $$p && break; done)

VENV_DIR = $(DESTDIR)$(PREFIX)
UNITS = $(DESTDIR)$(UNITDIR)

.PHONY: install-agent install-tower uninstall-agent uninstall-tower

install-agent: ## install the agent as a systemd service (as root; DESTDIR= to try it)
	@$(call install_daemon,agent,agent.env)
	@install -D -m 644 deploy/systemd/watchtower-agent.sysusers \
		'$(DESTDIR)$(SYSUSERSDIR)/watchtower-agent.conf'
	@echo "installed. Write the address of the tower into $(SYSCONFDIR)/agent.env. Then:"
	@echo "  systemd-sysusers && systemctl daemon-reload"
	@echo "  systemctl enable --now watchtower-agent"

install-tower: ## install the tower as a systemd service (as root; DESTDIR= to try it)
	@$(call install_daemon,tower,tower.toml)
	@echo "installed. The tower listens on loopback; its settings are in $(SYSCONFDIR)/tower.toml. Then:"
	@echo "  systemctl daemon-reload"
	@echo "  systemctl enable --now watchtower-tower"

uninstall-agent: ## remove the agent's service; settings and data stay
	@$(call uninstall_daemon,agent,tower)
	@rm -f '$(DESTDIR)$(SYSUSERSDIR)/watchtower-agent.conf'

uninstall-tower: ## remove the tower's service; settings and data stay
	@$(call uninstall_daemon,tower,agent)

# $(1) agent or tower, $(2) its settings. Settings that are there already are not touched.
define install_daemon
	set -e; \
	test -n "$(SERVICE_PYTHON)" || { echo "no Python >= 3.10 with venv is in /usr/bin (on Debian \
	and Ubuntu: apt install python3-venv); or give one: SERVICE_PYTHON=FILE"; exit 1; }; \
	umask 022; \
	test -x '$(VENV_DIR)/bin/python' || $(SERVICE_PYTHON) -m venv '$(VENV_DIR)'; \
	'$(VENV_DIR)/bin/python' -m pip install --quiet --disable-pip-version-check \
		--root-user-action=ignore -c constraints.txt ./heartbeat '.[$(1)]'; \
	$(if $(DESTDIR),'$(VENV_DIR)/bin/python' deploy/relocatable.py '$(VENV_DIR)'/bin/watchtower*;) \
	install -d '$(DESTDIR)$(SYSCONFDIR)' '$(UNITS)'; \
	sed 's|/opt/watchtower/|$(PREFIX)/|; s|/etc/watchtower/|$(SYSCONFDIR)/|' \
		deploy/systemd/watchtower-$(1).service > '$(UNITS)/watchtower-$(1).service'; \
	test -e '$(DESTDIR)$(SYSCONFDIR)/$(2)' || \
		install -m 644 deploy/systemd/$(2) '$(DESTDIR)$(SYSCONFDIR)/$(2)'
endef

# $(1) goes; the environment stays while $(2) uses it.
define uninstall_daemon
	set -e; \
	rm -f '$(UNITS)/watchtower-$(1).service'; \
	test -e '$(UNITS)/watchtower-$(2).service' || rm -rf '$(VENV_DIR)'; \
	echo "removed. Settings in $(SYSCONFDIR) and data in /var/lib stay. Then: systemctl daemon-reload"
endef
