#include "base/control_group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/host_memory.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Groups = std::vector<std::string>;

TEST(ControlGroup, NamesAllGroupsAroundAProcess) {
  EXPECT_EQ(control_groups("0::/a.slice/b/c\n", "/r"),
            (Groups{"/r/a.slice/b/c", "/r/a.slice/b", "/r/a.slice", "/r"}));
  EXPECT_EQ(control_groups("0::/\n", "/r"), Groups{"/r"});
  EXPECT_EQ(control_groups("", "/r"), Groups{"/r"});
  // Controllers of cgroup v1 have separate lines.
  EXPECT_EQ(control_groups("12:memory:/old\n1:name=systemd:/x\n0::/a", "/r"),
            (Groups{"/r/a", "/r"}));
  EXPECT_EQ(control_groups().back(), "/sys/fs/cgroup");
}

TEST(ControlGroup, TheTightestGroupLeavesItsMemory) {
  TempFolder folder;
  auto limit = [&](const std::string& group, const char* most, const char* used, const char* stat) {
    std::string at = folder.path("r") + group;
    std::filesystem::create_directories(at);
    write_file(at + "/memory.max", most);
    write_file(at + "/memory.current", used);
    write_file(at + "/memory.stat", stat);
  };
  Groups groups = control_groups("0::/job/step", folder.path("r"));
  EXPECT_TRUE(std::isinf(free_group_memory(groups)));  // no files exist
  limit("/job/step", "max\n", "700\n", "anon 600\ninactive_file 100\n");
  EXPECT_TRUE(std::isinf(free_group_memory(groups)));
  limit("/job", "1000\n", "900\n", "anon 600\ninactive_file 250\nactive_file 50\n");
  EXPECT_EQ(free_group_memory(groups), 350);
  limit("", "5000\n", "4800\n", "inactive_file 0\n");
  EXPECT_EQ(free_group_memory(groups), 200);
  limit("/job/step", "10\n", "11\n", "");  // above its limit
  EXPECT_EQ(free_group_memory(groups), 0);
  EXPECT_EQ(group_text(groups.front(), "cpu.max"), "");
}

}  // namespace
}  // namespace bev
