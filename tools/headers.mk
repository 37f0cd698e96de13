# One stamp for each of $(headers); run by check_headers.sh from the repository root.
stamps := $(headers:%=build/headers/%.ok)

all: $(stamps)

build/headers/%.ok: % tools/headers.mk
	@mkdir -p $(@D)
	@g++ -std=c++20 -Wall -Wextra -Wshadow -Werror -Isrc -I. -DBEV_CPU_LEVEL=v2 -fsyntax-only -DBEV_SOURCE_DIR=\"\" -DBEV_BINARY_DIR=\"\" \
	  -MMD -MP -MT $@ -MF $(@:.ok=.d) -include $< -x c++ /dev/null
	@touch $@

-include $(stamps:.ok=.d)
