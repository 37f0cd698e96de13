#!/usr/bin/env python3
"""Translates CUDA sources into C++ for the emulator: kernel launches, shared variables, inline PTX.

usage: translate.py SOURCE_ROOT OUTPUT_ROOT FILE...

Writes each FILE, a path below SOURCE_ROOT, to the same path below OUTPUT_ROOT (.cu becomes
.cu.cpp). Lines keep their numbers. A file whose translation has not changed is not written.
"""
import os
import re
import sys

EMULATION = '::bev::cuda_emulation::'


def match_pair(text, at, opening, closing):
    """Index of the bracket that closes the one at `at`, outside of string literals."""
    depth, i = 0, at
    while i < len(text):
        if text[i] == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == '\\' else 1
        elif text[i] == opening:
            depth += 1
        elif text[i] == closing:
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise ValueError('unbalanced ' + opening)


def split_top(text, separator):
    """Parts of text between separators that are in no bracket or string."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == '\\' else 1
        elif c in '([{':
            depth += 1
        elif c in ')]}':
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        i += 1
    parts.append(text[start:])
    return [part.strip() for part in parts]


def lines_of(text):
    return '\n' * text.count('\n')


def translate_launches(text):
    while True:
        at = text.find('<<<')
        if at < 0:
            return text
        begin = len(text[:at].rstrip())
        if text[begin - 1] == '>':
            depth = 0
            while True:
                begin -= 1
                depth += {'>': 1, '<': -1}.get(text[begin], 0)
                if depth == 0:
                    break
        elif text[begin - 1] == ')':
            depth = 0
            while True:
                begin -= 1
                depth += {')': 1, '(': -1}.get(text[begin], 0)
                if depth == 0:
                    break
        while re.match(r'[\w:]', text[begin - 1]):
            begin -= 1
        name = text[begin:at].strip()
        end, depth = at + 3, 0
        while not (text.startswith('>>>', end) and depth == 0):
            depth += {'(': 1, ')': -1}.get(text[end], 0)
            end += 1
        opening = text.index('(', end)
        closing = match_pair(text, opening, '(', ')')
        arguments = text[opening + 1:closing]
        # Arguments are evaluated once, except where one in braces needs the kernel's types.
        if any(part.startswith('{') for part in split_top(arguments, ',')):
            parameters, inner, outer = '', arguments, ''
        else:
            parameters, inner, outer = 'const auto&... arguments', 'arguments...', arguments
        launch = '%slauncher("%s", %sConfiguration(%s), [&](%s) { %s(%s); })(%s)' % (
            EMULATION, ' '.join(name.split()), EMULATION, text[at + 3:end], parameters, name, inner, outer)
        text = text[:begin] + launch + text[closing + 1:]


def split_type(declaration):
    """Type and declarators of a declaration."""
    declaration = re.sub(r'__align__\(\s*\w+\s*\)', '', declaration).strip()
    anonymous = re.match(r'(union|struct)\s*\{', declaration)
    if anonymous:
        end = match_pair(declaration, anonymous.end() - 1, '{', '}') + 1
        return declaration[:end], declaration[end:].strip()
    end = re.match(r'(unsigned\s+(?=char|int|short|long))?[\w:]+', declaration).end()
    if declaration[end:].lstrip().startswith('<'):
        end = match_pair(declaration, declaration.index('<', end), '<', '>') + 1
        end += re.match(r'(::\w+)*', declaration[end:]).end()
    return declaration[:end], declaration[end:].strip()


def translate_shared(text):
    while True:
        found = re.search(r'\b(extern\s+)?__shared__\b', text)
        if not found:
            return text
        end, depth = found.end(), 0
        while text[end] != ';' or depth > 0:
            depth += {'{': 1, '}': -1}.get(text[end], 0)
            end += 1
        type_name, declarators = split_type(text[found.end():end])
        out = ''
        if found.group(1):
            name = declarators.split('[')[0].strip()
            out = '%s* const %s = static_cast<%s*>(%sdynamic_shared());' % (type_name, name, type_name,
                                                                         EMULATION)
        else:
            if type_name.startswith(('union', 'struct')):
                own = 'SharedType%d' % found.start()
                out = re.sub(r'^(union|struct)', r'\1 ' + own, type_name) + '; '
                type_name = own
            for declarator in split_top(declarators, ','):
                name = re.match(r'\w+', declarator).group(0)
                out += 'auto& %s = %sshared_variable<%s%s>([] {}); ' % (name, EMULATION, type_name,
                                                                     declarator[len(name):])
        out += lines_of(text[found.start():end + 1])[out.count('\n'):]
        text = text[:found.start()] + out + text[end + 1:]


def translate_instruction(instruction, operands):
    """C++ of one PTX instruction; its operands are arguments in the order of the instruction."""
    instruction = instruction.strip()
    register = re.match(r'\.reg\s+\.(u32|b32|u64|b64)\s+(\w+)$', instruction)
    if register:
        return 'std::uint%s_t %s' % (register.group(1)[1:], register.group(2))
    parts = re.match(r'([\w.:]+)\s*(.*)$', instruction, re.S)
    if not parts or '@' in instruction or parts.group(1).endswith(':'):
        return EMULATION + 'ptx::unknown()'
    name = re.sub(r'\W+', '_', parts.group(1))
    arguments = [operands[int(token[1:])] if token[0] == '%' else token
                 for token in re.findall(r'%\d+|\w+', parts.group(2))]
    return '%sptx::%s(%s)' % (EMULATION, name, ', '.join(arguments))


def translate_asm(text):
    while True:
        found = re.search(r'\basm\b(\s+volatile)?\s*\(', text)
        if not found:
            return text
        end = match_pair(text, found.end() - 1, '(', ')')
        sections = split_top(text[found.end():end], ':')
        code = ''.join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0])).replace('\\n', ' ').strip()
        if code.startswith('{'):
            code = code[1:].rstrip().removesuffix('}')
        operands = []
        for section in sections[1:3]:
            for operand in split_top(section, ','):
                if operand:
                    operands.append(re.match(r'"[^"]*"\s*(\(.*\))$', operand, re.S).group(1))
        calls = [translate_instruction(part, operands) for part in code.split(';') if part.strip()]
        out = 'do { %s; } while (false)' % '; '.join(calls)
        out = out.replace('\n', ' ') + lines_of(text[found.start():end])
        text = text[:found.start()] + out + text[end + 1:]


def translate(path, text):
    text = re.sub(r'//[^\n]*', '', text)
    text = translate_asm(text)
    text = translate_shared(text)
    text = translate_launches(text)
    return '#line 1 "%s"\n%s' % (path, text)


def main():
    source_root, output_root = sys.argv[1:3]
    for name in sys.argv[3:]:
        source = os.path.join(source_root, name)
        target = os.path.join(output_root, name + ('.cpp' if name.endswith('.cu') else ''))
        with open(source) as file:
            try:
                translated = translate(source, file.read())
            except (ValueError, AttributeError, IndexError) as error:
                sys.exit('translate.py: %s: %s' % (source, error))
        if os.path.exists(target):
            with open(target) as file:
                if file.read() == translated:
                    continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, 'w') as file:
            file.write(translated)


main()
