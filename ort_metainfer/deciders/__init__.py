"""Policy: each decider is asked for proposals and never acts."""
