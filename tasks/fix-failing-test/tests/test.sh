#!/bin/bash
# Judges the final files. What the agent wrote is only ever run by check.py as the agent's user, who can read
# neither these tests nor write the reward.
chmod 700 /tests /logs/verifier
exec python3 -I /tests/check.py
