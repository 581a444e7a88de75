#!/bin/bash
# Nothing of the agent's is here but its artifacts.
python3 -I /tests/judge.py
