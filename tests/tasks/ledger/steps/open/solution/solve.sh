#!/bin/bash
: > /app/ledger
