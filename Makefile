# Postern's front door. `make demo` and `make test` do all their own set-up.
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: all demo test bench install docs tidy clean setup

all: setup
	@test -f build/build.ninja || cmake --preset release >/dev/null
	@cmake --build --preset release -- --quiet

setup:
	@tools/setup build

demo: all
	@build/postern demo

test:
	@tools/setup test
	@$(MAKE) --no-print-directory all
	@$(PYTHON) tools/test.py

bench:
	@tools/setup bench
	@$(MAKE) --no-print-directory all
	@$(PYTHON) bench/run $(BENCH)

install: all
	DESTDIR=$(DESTDIR) cmake --install build --prefix $(PREFIX)

# What can be generated from the program is; the rest is checked for dead links and paths.
docs: all
	@build/postern help --settings-markdown > docs/settings.md
	@$(PYTHON) tools/docs.py

tidy:
	@$(PYTHON) tools/tidy.py

clean:
	rm -rf build
