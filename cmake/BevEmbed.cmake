# Text files compiled into a target.
#
#   bev_embed(bev_serve src/serve/page/index.html src/serve/page/page.css)
#
# defines bev::embedded::index_html and page_css, each a std::string_view of the file's bytes, in a source that is
# written at build time, and again when a file changes. This file is also the script that writes it.

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(source "// Written by cmake/BevEmbed.cmake.\n#include <string_view>\n\nnamespace bev::embedded {\n")
  foreach(file IN LISTS FILES)
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    file(READ ${file} content)
    string(LENGTH "${content}" bytes)
    file(SIZE ${file} size)
    string(FIND "${content}" ")bev_embed\"" end)
    if(NOT bytes EQUAL size OR NOT end EQUAL -1)
      message(FATAL_ERROR "${file} cannot be a string literal: it has a zero byte or )bev_embed\"")
    endif()
    string(APPEND source "\nextern const std::string_view ${name};\n"
           "const std::string_view ${name}(R\"bev_embed(${content})bev_embed\", ${size});\n")
  endforeach()
  file(WRITE ${OUTPUT} "${source}\n}  // namespace bev::embedded\n")
  return()
endif()

set(BEV_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(bev_embed target)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  set(source ${CMAKE_BINARY_DIR}/generated/${target}_embedded.cpp)
  add_custom_command(OUTPUT ${source} DEPENDS ${files} ${BEV_EMBED_SCRIPT} VERBATIM
    COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" -DOUTPUT=${source} -P ${BEV_EMBED_SCRIPT}
    COMMENT "Embedding files in ${target}")
  target_sources(${target} PRIVATE ${source})
endfunction()
