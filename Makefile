# `make demo` and `make test` need Python 3.11 or newer and make; all else goes into .venv, beside this file.
# Paths are relative, so that the folder's own path may hold anything.

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

DEMO = --levels 1,2,4,8 --duration 6s --warmup 2s --cooldown 3s --max-tokens 16 --slo 'stream.ttft_ms.p95<=500'

demo: .venv/.installed  ## sweep the embedded gateway: a report in under two minutes
	@.venv/bin/ha-sweep run --demo $(DEMO)

test: .venv/.installed-dev  ## every test but the benchmarks, two files at a time; ARGS goes to pytest
	.venv/bin/python -m pytest -m 'not bench' -n 2 --dist loadfile $(ARGS)

lint: .venv/.installed-dev  ## style and types
	.venv/bin/python -m ruff check .
	.venv/bin/python -m mypy

bench: .venv/.installed-dev  ## measurements, no tests
	.venv/bin/python -m pytest -m bench -s tests/bench $(ARGS)

clean:  ## everything made here but the runs in out/
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find sweep sampler locustfiles tests -name __pycache__ -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml | .venv/bin/python
	@echo 'installing into .venv' >&2
	@$(call install,-e .)
	@touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	@echo 'installing into .venv' >&2
	@$(call install,-e '.[dev]')
	@touch .venv/.installed $@

# Bytecode is compiled at the installation, which pip does by itself: where PYTHONDONTWRITEBYTECODE is set,
# importing would compile a thousand modules again at every start.
install = if command -v uv >/dev/null; \
	then uv pip install --quiet --compile-bytecode --python .venv/bin/python $(1); \
	else .venv/bin/python -m pip install -qq --disable-pip-version-check $(1); fi

.venv/bin/python:
	@rm -rf .venv; \
	if command -v uv >/dev/null; then exec uv venv --quiet --python '>=3.11' .venv; fi; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then exec "$$python" -m venv .venv; fi; \
	        no_venv="$$python"; \
	    fi; \
	done; \
	if [ -n "$$no_venv" ]; then \
	    echo "$$no_venv has no venv module. On Debian or Ubuntu: apt-get install python3-venv" >&2; \
	else \
	    found=$$(python3 --version 2>&1) || found='no python3'; \
	    echo "ha-sweep needs Python 3.11 or newer; found: $$found" >&2; \
	fi; \
	exit 1
