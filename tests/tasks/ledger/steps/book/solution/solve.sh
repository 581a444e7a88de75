#!/bin/bash
cat receipts.txt >> ledger
