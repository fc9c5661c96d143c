// SPDX-License-Identifier: Apache-2.0
#include "apps/command_table.h"

#include <gtest/gtest.h>

#include "apps/completion.h"
#include "apps/man_page.h"

namespace loralei {
namespace {

class Pages : public testing::Test {
 protected:
  Pages() {
    app_.set_version_flag("--version", "1");
    CLI::App* serve = app_.add_subcommand("serve", "Serves. It's \\ .a 'word' for `$HOME`.");
    serve->add_option("model,--model", text_, "what")->required();
    serve->add_option("-c,--context,--ctx", number_, ".first\nsecond")
        ->check(CLI::Range(1, 9))
        ->capture_default_str()
        ->envname("LORALEI_CONTEXT");
    serve->add_option("--mode", text_, "how")->check(CLI::IsMember({"on", "off"}));
    serve->add_option("--many", texts_, "each")->group("Others");
    serve->add_flag("--fast", fast_, "no value");
    serve->add_option("--secret", text_, "hidden")->group("");
    app_.add_subcommand("inner", "not shown")->group("");
    app_.add_subcommand("outer", "Has one below.")->add_subcommand("below", "Deep.")->add_option("--file", text_, "a");
    program_ = describe_command(app_, "loralei");
  }
  CLI::App app_{"A program.", "loralei"};
  std::string text_;
  int number_ = 4;
  bool fast_ = false;
  std::vector<std::string> texts_;
  CommandRow program_;
};

TEST_F(Pages, TheTableHasWhatHelpShows) {
  ASSERT_EQ(program_.below.size(), 2u) << "what is hidden stands nowhere";
  const CommandRow& serve = program_.below[0];
  EXPECT_EQ(serve.path, "loralei serve");
  ASSERT_EQ(serve.positionals.size(), 1u);
  EXPECT_EQ(serve.positionals[0].names, std::vector<std::string>{"model"});
  EXPECT_TRUE(serve.positionals[0].required);
  ASSERT_EQ(serve.options.size(), 6u);  // --help, --model first
  const OptionRow& context = serve.options[2];
  EXPECT_EQ(context.names, (std::vector<std::string>{"-c", "--context", "--ctx"}));
  EXPECT_EQ(context.value, "INT");
  EXPECT_EQ(context.range, "1 - 9");
  EXPECT_EQ(context.default_value, "4");
  EXPECT_EQ(context.variable, "LORALEI_CONTEXT");
  EXPECT_EQ(serve.options[3].choices, (std::vector<std::string>{"on", "off"}));
  EXPECT_TRUE(serve.options[4].repeated);
  EXPECT_EQ(serve.options[5].value, "");
  EXPECT_EQ(program_.below[1].below[0].path, "loralei outer below");
}

TEST_F(Pages, EveryCommandHasAPageWithEveryOption) {
  const std::vector<ManPage> pages = man_pages(program_, "1.2.3");
  ASSERT_EQ(pages.size(), 4u);
  EXPECT_EQ(pages[0].file, "loralei.1");
  EXPECT_EQ(pages[3].file, "loralei-outer-below.1");
  const std::string& serve = pages[1].text;
  EXPECT_EQ(serve.rfind(".TH LORALEI\\-SERVE 1 \"\" \"Loralei 1.2.3\"", 0), 0u) << serve;
  for (const char* part :
       {"\\fB\\-c\\fR, \\fB\\-\\-context\\fR, \\fB\\-\\-ctx\\fR \\fIINT\\fR", "Range: 1 \\- 9.", "Default: \\fB4\\fR.",
        "Variable: \\fBLORALEI_CONTEXT\\fR.", "One of \\fBon\\fR, \\fBoff\\fR.", ".SS Others",
        "\\fIOPTIONS\\fR] \\fImodel\\fR", "loralei\\-outer\\fR(1)"})
    EXPECT_NE(serve.find(part), std::string::npos) << part << "\n" << serve;
  EXPECT_EQ(serve.find("secret"), std::string::npos);
  // Text that looks like the formatter's own.
  EXPECT_NE(serve.find("\n\\&.first\nsecond"), std::string::npos) << serve;
  EXPECT_NE(serve.find("\\e .a"), std::string::npos) << serve;
}

TEST_F(Pages, AShellThatThereIsNotIsRefused) {
  EXPECT_TRUE(completion_script(program_, "bash").ok());
  const auto refused = completion_script(program_, "csh");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "there is no completion for 'csh'; choose bash, zsh or fish");
}

TEST_F(Pages, DescriptionsAreNothingToAShell) {
  for (const char* shell : {"zsh", "fish"}) {
    const std::string script = *completion_script(program_, shell);
    EXPECT_NE(script.find("It'\\''s \\ .a '\\''word'\\'' for `$HOME`.'"), std::string::npos) << script;
    EXPECT_EQ(script.find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace loralei
