"""Units of systemd: a server or a site as a service that may do little else.

Both run as the user ``coterie`` from ``/var/lib/coterie``, where the folder that was provisioned
lies; keys stay files that this user alone can read.
"""

HOME = "/var/lib/coterie"
_UNIT = """# {what}; docs/operations.md says how it is installed.
[Unit]
Description={what}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User=coterie
StateDirectory=coterie
StateDirectoryMode=0700
WorkingDirectory={home}
Environment=HOME={home} PATH=/opt/coterie/bin:/usr/local/bin:/usr/bin:/bin
ExecStart=/usr/bin/env coterie {words}
Restart=on-failure
RestartSec={pause}
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec=30

UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
{own}ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


def server(name: str) -> str:
    """Return the unit of a federation's server, whose folder is ``server`` below :data:`HOME`."""
    return _UNIT.format(
        what=f"Coterie server of {name}",
        home=HOME,
        words=f"serve {HOME}/server --log-format json",
        pause=10,
        own="PrivateDevices=yes\n",
    )


def site(site_id: str) -> str:
    """Return the unit of a site, whose folder has its name; it may use the machine's GPUs."""
    return _UNIT.format(
        what=f"Coterie site {site_id}",
        home=HOME,
        words=f"site --config {HOME}/{site_id}/site.toml --log-format json",
        pause=60,
        own="",
    )
